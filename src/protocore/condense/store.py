"""M_s and M_p of the paper: condensed exemplars with their prototypes, and how both are renewed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from protocore.codecs.base import Codec
from protocore.condense.loop import Condensed, Goals, Maps, Start, Weights, condense
from protocore.condense.matching import Matching
from protocore.condense.targets import Targets
from protocore.data.augment import to_float
from protocore.errors import UserError
from protocore.memory.codings import Codings
from protocore.memory.prototypes import PrototypeStore
from protocore.memory.store import ExemplarStore
from protocore.ranks.split import split

STARTS = ("auto", "random", "mean", "nearest")


@dataclass(frozen=True)
class Recipe:
    """How exemplars are made."""

    weights: Weights
    steps: int
    lr: float
    start: str
    init_scale: float
    perturb: Callable[[Tensor], Tensor] | None
    refresh: bool
    target: str = "centre"  # or "sample": the features of the picture that the exemplar starts at
    record: bool = False
    matching: Matching | None = None  # of distributions, in place of features


def start_for(origin: str, start: str) -> str:
    """The start that goes with the origin: only one that no single picture goes into gives synthetic exemplars."""
    if start == "auto":
        return "mean" if origin == "synthetic" else "nearest"
    if origin != "auto" and (start == "nearest") != (origin == "coded"):
        raise UserError(f"--exemplars {origin} and --start {start} exclude each other: an exemplar that starts at a "
                        "real picture is a coded one, one that starts at random codes or a class mean a synthetic one")
    return start


class CondensedStore:
    """One or more condensed exemplars and one real prototype a class: two stores that are renewed together."""

    def __init__(self, codec: Codec, dim: int, dtype: str, recipe: Recipe, codings: Codings | None = None) -> None:
        self.codec = codec
        self.recipe = recipe
        # An exemplar that starts at a real picture is a compressed real picture: it is called so.
        origin = "coded" if recipe.start == "nearest" else "synthetic"
        self.exemplars = ExemplarStore(codec, f"{origin} exemplars", codings, origin)
        self.prototypes = PrototypeStore(dim, dtype)
        self.records: dict[str, Tensor] = {}

    def start(self, targets: Targets, images_of: Callable[[Tensor], Tensor]) -> Start:
        """What condensation starts from, one a target; `images_of` reads uint8 images of the open task by row.

        Latents, as the codec has them before it quantises. Where no step follows, what is stored of the pictures is
        enough, and of a picture that was coded before it is known.
        """
        r = self.recipe
        if r.start == "random":
            return self.codec.random(len(targets.labels), r.init_scale)
        if r.start == "nearest":
            images = images_of(targets.nearest)
            if not r.steps and not r.refresh and not self.codec.lossless:
                return self.exemplars.codings.of(images, targets.nearest)
            return self._encode(images)
        return torch.stack([self._mean_latent(member.nonzero().flatten(), images_of) for member in targets.members])

    def _mean_latent(self, rows: Tensor, images_of: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.stack([self._encode(images_of(part)).sum(0) for part in rows.split(256)]).sum(0) / len(rows)

    def _encode(self, images: Tensor) -> Tensor:
        return split(self.codec.encode, to_float(images.to(self.codec.device)))

    def renew(self, features: Callable[[Tensor], Tensor], targets: Targets, start: Start, room: Tensor,
              progress: Callable[[int, int], None] | None = None, *, maps: Maps | None = None,
              layers: Tensor | None = None, images: Tensor | None = None,
              matched: Callable[[Tensor, Goals], Condensed] | None = None) -> Condensed:
        """Condense the targets' classes (with `refresh` all others too) and replace what was stored of them.

        A class that returns with few samples gets few new exemplars: old ones stay beside them as far as there is
        room, `room[c]` for class c. `layers` and `images` are further goals of the targets: what `maps` should say of
        them, their pictures. `matched` optimises in place of `condense`, from start points towards goals.
        """
        goals = replace(self._goals(features, targets), layers=layers, images=images)
        r, returning = self.recipe, targets.labels.unique().cpu()
        if r.refresh and isinstance(start, Tensor):
            goals, start = self._with_the_others(features, goals, start, maps)
        if matched is not None and isinstance(start, Tensor):
            made = matched(start, goals)
        else:
            made = condense(features, self.codec, start, goals, weights=r.weights, steps=r.steps, lr=r.lr,
                            perturb=r.perturb, maps=maps, record=r.record, progress=progress)
        if r.record and made.trace:
            self.records = {"steps": torch.stack(made.trace).cpu(), "targets": goals.target.cpu(),
                            "labels": goals.labels.cpu()}
        again = torch.isin(self.exemplars.labels, returning)
        made_again = torch.isin(self.exemplars.labels, goals.labels.cpu()) & ~again
        new = torch.arange(len(self.exemplars), len(self.exemplars) + len(goals.labels))
        self.exemplars.put_stored(new, made.stored, goals.labels)
        self.exemplars.keep(torch.cat([(~again & ~made_again).nonzero().flatten(), new, again.nonzero().flatten()]))
        self.exemplars.keep(self.exemplars.first_of_each(room))
        return made

    def _goals(self, features: Callable[[Tensor], Tensor], targets: Targets) -> Goals:
        """Targets for all; stored exemplars and prototypes for the classes that come back."""
        previous = torch.full_like(targets.features, float("nan"))
        anchor = previous.clone()
        for label in targets.labels.unique().tolist():
            rows = (targets.labels == label).nonzero().flatten()
            held = self.exemplars.slots_of(label)
            if len(held):
                again = held.repeat(-(-len(rows) // len(held)))[: len(rows)]
                previous[rows] = self._seen(features, self.exemplars.at(again).images, previous.device)
            if label in self.prototypes:
                anchor[rows] = self.prototypes.get([label]).to(anchor)
        return Goals(targets.features, previous, anchor, targets.labels)

    def _with_the_others(self, features: Callable[[Tensor], Tensor], goals: Goals, start: Tensor,
                         maps: Maps | None) -> tuple[Goals, Tensor]:
        """Old classes have no data: they hold on to what their exemplars say now, and to their prototypes."""
        rest = torch.isin(self.exemplars.labels, goals.labels.cpu(), invert=True).nonzero().flatten()
        if not len(rest):
            return goals, start
        old = self.exemplars.at(rest)
        anchor = self.prototypes.get(old.labels.tolist()).to(goals.target)
        images = old.images.to(anchor.device).float() / 255
        layers = goals.layers
        if layers is not None and maps is not None:
            with torch.no_grad():
                layers = torch.cat([layers, cast(Tensor, maps(images)[1])])
        joined = Goals(
            torch.cat([goals.target, torch.full_like(anchor, float("nan"))]),
            torch.cat([goals.previous, self._seen(features, old.images, anchor.device)]),
            torch.cat([goals.anchor, anchor]),
            torch.cat([goals.labels, old.labels.to(goals.labels)]),
            layers,
            None if goals.images is None else torch.cat([goals.images, images.to(goals.images)]),
        )
        return joined, torch.cat([start, self.exemplars.latents(rest).to(start)])

    @staticmethod
    @torch.no_grad()
    def _seen(features: Callable[[Tensor], Tensor], images: Tensor, device: torch.device) -> Tensor:
        return features(images.to(device).float() / 255)
