"""The memory of ProtoCore, and how the end of a task renews it (the paper's Alg. 3 and 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from protocore.condense.store import CondensedStore
from protocore.condense.targets import Targets, believed, make_targets
from protocore.data.augment import augmentation, to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.fill import settle
from protocore.memory.plan import Horizon, Plan
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.parts.losses import RADIUS, class_means, radius
from protocore.methods.parts.means import NearestMean, at_home
from protocore.methods.parts.neighbours import HeadAndNeighbours
from protocore.methods.parts.previous import Previous
from protocore.methods.parts.replay import Replay
from protocore.methods.parts.ridge import moved
from protocore.methods.protocore_matching import further_goals, maps_of, matcher
from protocore.methods.protocore_options import ProtoCoreOptions, recipe_of, sigma_of


class Condensing(Method):
    """M_s and M_p: condensed exemplars and real prototypes, beside them the radius of feature noise and, with --real,
    some exemplars as they are. How they are learned from is said in a subclass."""

    options: ProtoCoreOptions

    def __init__(self, tools: Tools, options: ProtoCoreOptions) -> None:
        super().__init__(tools, options)
        o = options
        self.perturb = tools.augment if o.perturb == "auto" else augmentation(o.perturb)
        recipe = recipe_of(o, self.perturb, tools.codec)
        if o.target == "sample" and tools.space == "codec":
            raise UserError("--target sample has no meaning with --replay-space codec: there the network sees nothing "
                            "of a sample but its code; take --replay-space mix")
        self.invents = recipe.start != "nearest" or recipe.steps > 0
        self.blend = 1 if recipe.start == "nearest" else o.blend
        self.condensed = CondensedStore(tools.codec, self.net.dim, o.prototype_dtype, recipe, tools.codings)
        self.exemplars = self.keep(self.condensed.exemplars)
        self.prototypes = self.keep(self.condensed.prototypes)
        self.real = self.keep(Replay(tools, "class", "real exemplars")) if o.real else None
        if self.real:
            self.hold(self.real.room)
        self.previous = self.hold(Previous(self.net))
        synthetic = recipe.start != "nearest"
        self.by_prototypes = o.predict == "prototypes" or (o.predict == "auto" and synthetic and not o.real)
        self.follows = self.by_prototypes and o.follow
        self.sigma = torch.full((1,), sigma_of(o.noise))
        self.keep("sigma", "statistics/sigma", mixed=RADIUS)
        self.kept_records: dict[str, Tensor] = {}
        self.voters: tuple[Tensor, Tensor] | None = None  # features and labels of exemplars, for the present network

    def after_step(self, batch: Batch) -> None:
        self.voters = None

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        self.voters = None

    def predictor(self) -> nn.Module:
        if self.by_prototypes and len(self.prototypes):
            classes = self.prototypes.classes
            return NearestMean(self.net, self.prototypes.get(classes).to(self.tools.device), classes, self.seen[-1] + 1)
        stores = [store for store in self.stores() if len(store)]
        if not stores or not self.options.neighbours:
            return self.net
        if self.voters is None:
            parts = [store.at(rows) for store in stores for rows in torch.arange(len(store)).split(self.net.at_once())]
            self.voters = (torch.cat([self.features_of(to_float(part.images)) for part in parts]),
                           torch.cat([part.labels.long() for part in parts]).to(self.tools.device))
        return HeadAndNeighbours(self.net, *self.voters, self.options.task_temperature, self.options.neighbours)

    @torch.no_grad()
    def features_of(self, images: Tensor) -> Tensor:
        with self.evaluating():
            return self.net.features(self.tools.on_device(images))

    def end_task(self, task: Task) -> None:
        self.voters = None
        with self.tools.timed("condense"):
            z, labels = self.task_features(task)
            with torch.no_grad():
                correct = self.net.logits(z).argmax(1) == labels
            if not self.options.filter:
                correct = torch.ones_like(correct)
            if self.sigma.isnan():
                self.sigma = radius(z, labels)[None].cpu()
            self.follow(task, z)
            classes, room = list(task.classes), self.room(task)
            rows = believed(labels, correct, room * self.blend)
            targets = make_targets(z, labels, classes, room, rows, self.blend)
            if self.options.target == "sample":
                targets = replace(targets, features=z[targets.nearest])
            if len(targets.labels):
                self.condense(task, targets, room)
            else:  # no class has samples enough for a blend; what is stored may still have to make room
                self.exemplars.keep(self.exemplars.first_of_each(room))
            if self.options.record:
                self.kept_records |= {"real": z.cpu(), "real labels": labels.cpu()}
            # A class that only visits, with a few samples, keeps the prototype of the task that was about it.
            home = at_home(task)
            classes = [c for c in classes if c in home or c not in self.prototypes]
            means, _ = class_means(z, labels, torch.tensor(classes, device=z.device), believed(labels, correct))
            self.prototypes.set(classes, means)
        self.settle()

    @torch.no_grad()
    def follow(self, task: Task, z: Tensor) -> None:
        """Stored prototypes move where the network has moved what it sees: z are its new features of the task."""
        classes, show = self.prototypes.classes, self.tools.on_device
        if not self.follows or self.previous.net is None or not classes:
            return

        def before(parts: Iterable[Tensor]) -> Tensor:
            return torch.cat([self.previous.features(show(x)) for x in parts])

        pairs = [(before(to_float(self.images(task, rows)) for rows in torch.arange(len(task)).split(256)), z)]
        stored = [to_float(store.at(rows).images)
                  for store in self.stores() for rows in torch.arange(len(store)).split(256)]
        if stored:
            pairs.append((before(stored), torch.cat([self.features_of(x) for x in stored])))
        self.prototypes.set(classes, moved(self.prototypes.get(classes), pairs))

    def settle(self) -> None:
        settle(self.tools.settings.budget, self.exemplars, self.state)

    def condense(self, task: Task, targets: Targets, room: Tensor) -> None:
        self.net.eval()
        start = self.condensed.start(targets, lambda rows: task.take(rows.cpu()))
        matched = matcher(self, self.condensed, task, targets, self.options.task_temperature)
        made = self.condensed.renew(
            self.net.features, targets, self.tools.on_device(start) if isinstance(start, Tensor) else start, room,
            lambda done, of: self.tools.progress("condensing", done, of), maps=maps_of(self.net),
            matched=matched, **further_goals(self, task, targets))
        self.net.train()
        self.kept_records = self.condensed.records | {"losses": torch.tensor([made.before, made.after])}

    def room(self, task: Task) -> Tensor:
        """Condensed exemplars of each class that the allowance leaves beside prototypes and real exemplars."""
        at = self.horizon(task)
        return self.tools.allowance.room(at.classes, lambda rows: self.bytes_at(at, rows))

    def planned(self, at: Horizon, rows: int) -> Plan:
        real = self.real.plan(at, self.options.real * len(at.classes)) if self.real else {}
        return super().planned(at, rows) | real  # `rows` are condensed ones

    def forget(self, label: int) -> list[str]:
        self.condensed.records, self.kept_records, self.voters = {}, {}, None
        return super().forget(label)

    def records(self) -> dict[str, Tensor]:
        return self.kept_records if self.options.record else {}
