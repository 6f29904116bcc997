"""ProtoCore's synthetic exemplars by distribution matching: what can be chosen, and what the loop is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from protocore.backbones import Network
from protocore.codecs.base import Codec
from protocore.condense.loop import Condensed, Goals, Maps, flat_maps
from protocore.condense.matching import NETWORKS, Distribution, Learned, Matching, Reals, match
from protocore.condense.store import CondensedStore
from protocore.condense.targets import Targets, layer_goals
from protocore.config import Options, flag, option
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.methods.base import Method
from protocore.methods.parts.losses import masked_cross_entropy


@dataclass(frozen=True)
class MatchingOptions(Options):
    """How synthetic exemplars are made to stand for their class."""

    match: str = option("features", "what synthetic exemplars match: each the centre that it stands for, in the "
                        "features of the network that learned, or all of a class together the distribution of its "
                        "samples under many networks (auto: the distribution, where exemplars are synthetic and the "
                        "codec has gradients)", choices=("auto", "features", "distribution"))
    match_networks: str = option("fresh", "distribution: networks that compare, drawn anew, the one that learned, or "
                                 "these two in turn", choices=NETWORKS)
    match_samples: int = option(32, "distribution: real samples of each class that a network is shown", least=2)
    match_every: int = option(4, "distribution: steps for which a network stays, with its view and what it said of the "
                              "real samples", least=1)
    match_second: float = option(0.0, "distribution: weight of the second moments beside the means", least=0)
    match_label: float = option(0.0, "distribution: weight of the label loss of the network that learned", least=0)


def matching_of(o: MatchingOptions, *, coded: bool, blend: int, codec: Codec, steps: int | None = None
                ) -> Matching | None:
    """None where features are matched. What does not go with the choice is refused."""
    wishes = [wish for wish in ("match_layers", "condense_perturb") if getattr(o, wish)]
    how = o.match
    if how == "auto":
        how = "features" if coded or wishes or steps == 0 or not codec.differentiable else "distribution"
    if how == "features":
        for known in fields(MatchingOptions):
            if known.name != "match" and getattr(o, known.name) != known.default:
                raise UserError(f"{flag(known.name)} {getattr(o, known.name)} is about --match distribution: add it, "
                                f"or leave {flag(known.name)} out")
        return None
    if coded:
        raise UserError("--match distribution needs --exemplars synthetic: a coded exemplar stands for one picture, "
                        "and no distribution")
    if not codec.differentiable:
        raise UserError(f"--codec {codec.spec} has no gradients, so --match distribution cannot optimise through it: "
                        "take --codec vqgan or pixels, or --match features")
    if wishes:
        raise UserError(f"{flag(wishes[0])} is about --match features: a distribution is matched in the maps of other "
                        f"networks, under views of its own; leave {flag(wishes[0])} out")
    if o.match_samples < blend:
        raise UserError(f"--match-samples {o.match_samples} is fewer than --blend {blend}: a mean of fewer samples "
                        f"would give them away; take {blend} or more")
    return Matching(o.match_networks, o.match_samples, o.match_every, o.match_second, o.match_label)


def matcher(method: Method, store: CondensedStore, task: Task, targets: Targets, temperature: float
            ) -> Callable[[Tensor, Goals], Condensed] | None:
    """What optimises start points towards goals: the real samples are those that the targets stand for.

    With `--refresh` old classes are in the goals, too. Their samples are gone; what is stored of them stands for these.
    None where features are matched.
    """
    net, show, r = method.net, method.tools.on_device, store.recipe
    how = r.matching
    if how is None:
        return None
    rows = targets.members.any(0).nonzero().flatten().cpu()
    seen = torch.tensor(method.seen, device=targets.labels.device)

    def label_loss(images: Tensor, labels: Tensor) -> Tensor:
        return masked_cross_entropy(net(images), labels, seen, temperature)

    def optimise(start: Tensor, goals: Goals) -> Condensed:
        others = torch.isin(goals.labels, targets.labels, invert=True)
        slots = torch.isin(store.exemplars.labels, goals.labels[others].cpu()).nonzero().flatten()
        stored = store.exemplars.at(slots)

        def images(which: Tensor) -> Tensor:
            which = which.cpu()
            mine = which < len(rows)
            found = torch.empty(len(which), *task.image_shape, dtype=torch.uint8)
            found[mine] = method.images(task, rows[which[mine]])
            found[~mine] = stored.images[which[~mine] - len(rows)]
            return show(to_float(found))

        labels = torch.cat([task.labels_of(rows), stored.labels]).to(goals.labels)
        distribution = Distribution(store.codec, goals, Reals(labels, images), Learned(net.features, label_loss), how,
                                    r.weights)
        return match(start, distribution, steps=r.steps, lr=r.lr, record=r.record,
                     progress=lambda done, of: method.tools.progress("condensing", done, of))

    return optimise


def maps_of(net: Network) -> Maps:
    """Features, and the maps of the layers below them as one row an image."""
    def maps(x: Tensor) -> tuple[Tensor, Tensor]:
        layers = net.layers(x)
        return layers[-1], flat_maps(layers)

    return maps


def further_goals(method: Method, task: Task, targets: Targets) -> dict[str, Tensor]:
    """What exemplars match besides the features, where it is asked for: maps of the layers, pixels."""
    o, goals, show = method.options, {}, method.tools.on_device
    if o.match_layers:
        goals["layers"] = layer_goals(
            lambda x: flat_maps(method.net.layers(x)),
            lambda rows: show(to_float(method.images(task, rows.cpu()))), targets, of_sample=o.target == "sample")
    if o.match_pixels:
        goals["images"] = show(to_float(task.take(targets.nearest.cpu())))
    return goals
