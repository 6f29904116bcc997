"""What can be chosen about ProtoCore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from protocore.codecs.base import Codec
from protocore.condense.loop import Weights
from protocore.condense.store import STARTS, Recipe, start_for
from protocore.config import flag, option
from protocore.errors import UserError
from protocore.methods.protocore_matching import MatchingOptions, matching_of


@dataclass(frozen=True)
class ProtoCoreOptions(MatchingOptions):
    """Every loss has a coefficient; 0 switches it off."""

    cur_pro: float = option(0.1, "weight of L_cur_pro: current samples against all prototypes")
    pre_pro: float = option(0.1, "weight of L_pre_pro (α1): perturbed exemplars against all prototypes")
    task_pre: float = option(1.0, "weight of L_task_pre (α2): cross entropy of replayed classes")
    task_cur: float = option(1.0, "weight of L_task_cur (α3): cross entropy of current data")
    distill: float = option(8.0, "weight of distillation: old classes' outputs stay near those of the network before "
                            "the task, on current and replayed pictures", least=0)
    distill_temperature: float = option(2.0, "temperature of distillation", above=0)
    cur_syn: float = option(1.0, "weight of L_cur_syn: exemplars match the class's centre")
    pre_syn: float = option(0.1, "weight of L_pre_syn: exemplars of a returning class match the stored ones")
    shift: float = option(0.1, "weight of L_shift: exemplars of a returning class match its stored prototype")
    contrast: str = option("contrastive", "own class left out of the denominator, or kept in (Snell)",
                           choices=("contrastive", "prototypical"))
    pro_temperature: float = option(0.1, "temperature τ of the prototype losses", above=0)
    task_temperature: float = option(3.0, "temperature of the cross entropies", above=0)
    beta: float = option(0.95, "share of the exemplars in the prototype of a returning class")
    masked: bool = option(True, "L_task_cur over the classes of the current data only")
    balanced: bool = option(True, "L_task_pre over all seen classes, current ones included, equal weight a class")
    replay: str = option("all", "losses that condensed exemplars are shown for while a task is learned; with none of "
                         "them they help stored prototypes to follow the network", choices=("all", "none"))
    perturb: str = option("auto", "image transforms F of replay, as in --augment (auto: the same ones)")
    predict: str = option("auto", "what predicts: the head, beside which exemplars vote, or the nearest real prototype "
                          "(auto: prototypes where all exemplars are synthetic, else the head)",
                          choices=("auto", "head", "prototypes"))
    follow: bool = option(True, "where prototypes predict, stored ones are moved after a task by the linear map from "
                          "features before it to features after it, fitted on current images and exemplars")
    neighbours: float = option(0.05, "where the head predicts, exemplars vote beside it, by the cosine of their "
                               "features with this temperature (0: the head alone)", least=0)
    noise: str = option("auto", "σ of the feature noise in L_task_pre; auto: estimated in the first task (PASS)")
    filter: bool = option(True, "leave misclassified samples out of the prototypes")
    real: int = option(0, "real exemplars a class beside the condensed ones (20 for the paper's 20+1)", least=0)
    exemplars: str = option("auto", "coded ones start at a real picture and are compressed real pictures; synthetic "
                            "ones start at random codes or a mean (auto: what --start says, else coded)",
                            choices=("auto", "coded", "synthetic"))
    start: str = option("auto", "where z starts: random codes, the mean latent of the centre's samples, or the sample "
                        "nearest to the centre (auto: nearest if coded, mean if synthetic)", choices=STARTS)
    blend: int = option(5, "real samples that a synthetic exemplar stands for, at least: a class of n samples has at "
                        "most n / blend of them", least=2)
    target: str = option("centre", "what features match: the centre of the class, or the very sample that a coded "
                         "exemplar starts at (feature-aware coding)", choices=("centre", "sample"))
    match_layers: float = option(0.0, "weight of matching the maps of the layers below the features, too")
    match_pixels: float = option(0.0, "weight of staying near the pixels of the sample (coded exemplars)")
    natural: float = option(0.0, "weight of staying near latents that can be stored")
    condense_steps: int | None = option(None, "steps of condensation (default: 0 for coded exemplars, which steps do "
                                        "not make better, 50 for synthetic ones, 200 with --match distribution)",
                                        least=0)
    condense_lr: float | None = option(None, "learning rate of condensation (default: 0.02, and 0.06 with --match "
                                       "distribution)", above=0)
    condense_perturb: bool = option(False, "condense under the transforms of F")
    init_scale: float = option(1e-4, "standard deviation of a random start")
    refresh: bool = option(False, "after each task condense the exemplars of all seen classes again")
    prototype_dtype: str = option("int8", "how prototypes are stored", choices=("float16", "float32", "int8"))
    record: bool = option(False, "keep every step of the last task's condensation in the run folder (records)")
    prototype_every: int = option(20, "steps between two renewals of the old classes' prototypes", least=1)


def recipe_of(o: ProtoCoreOptions, perturb: Callable[[Tensor], Tensor], codec: Codec) -> Recipe:
    """How exemplars are made under these options; `perturb` are the transforms F of replay."""
    start = start_for(o.exemplars, o.start)
    coded = start == "nearest"
    for wish in ("target", "match_pixels"):
        if not coded and getattr(o, wish) not in ("centre", 0.0):
            raise UserError(f"{flag(wish)} {getattr(o, wish)} needs --exemplars coded: a synthetic exemplar stands "
                            "for no single picture")
    matching = matching_of(o, coded=coded, blend=o.blend, codec=codec, steps=o.condense_steps)
    usual, rate = (200, 0.06) if matching else (0 if coded or not codec.differentiable else 50, 0.02)
    steps = usual if o.condense_steps is None else o.condense_steps
    lr = rate if o.condense_lr is None else o.condense_lr
    if not codec.differentiable and (steps or start == "random"):
        raise UserError(f"--codec {codec.spec} has no gradients, so exemplars cannot be optimised through it: "
                        "leave out --condense-steps and --start random, or take --codec vqgan or pixels")
    wishes = ("target", "match_layers", "match_pixels", "natural", "condense_perturb", "refresh", "record", "match")
    idle = [wish for wish in wishes if getattr(o, wish) not in ("centre", "features", "auto", 0.0, False)]
    if idle and not steps:
        raise UserError(f"{flag(idle[0])} is about the steps of condensation, of which there are none (the default of "
                        "coded exemplars): give --condense-steps N, for example 50")
    weights = Weights(o.cur_syn, o.pre_syn, o.shift, o.match_layers, o.match_pixels, o.natural)
    return Recipe(weights, steps, lr, start, o.init_scale, perturb if o.condense_perturb else None,
                  o.refresh, o.target, o.record, matching)


def sigma_of(noise: str) -> float:
    """A fixed σ, or NaN while it is still to be estimated."""
    if noise == "auto":
        return float("nan")
    try:
        value = float(noise)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"--noise {noise!r}: give auto or a number from 0")
    return value
