"""Methods for a network that stays as it is: statistics of its features, counted once and never measured again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protocore.backbones import Network
from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.directions import directions, orthonormal
from protocore.errors import DataError, UserError, shown
from protocore.memory.covariances import Covariances
from protocore.memory.plan import Horizon, Plan, file_size
from protocore.memory.quota import largest
from protocore.methods.base import Addition, Method, Tools
from protocore.methods.parts.means import ClassMeans, OfFeatures, by_class
from protocore.methods.parts.moments import Moments
from protocore.methods.parts.projection import Projection

LEAST = 8  # numbers of a feature vector that a budget must have room for


@dataclass(frozen=True)
class FrozenOptions(Options):
    """What is kept of a feature vector, and how."""

    project: str = option("auto", "numbers that are kept of a feature vector, along random orthogonal directions: N, "
                          "full (all of them), or auto (as many as the budget has room for, fewer as classes come; all "
                          "without a budget)")
    tukey: float = option(1.0, "power β of features, their sign kept, before anything else (1: as they are)", above=0)
    prototype_dtype: str = option("int8", "how means are stored", choices=("int4", "int8", "float16", "float32"))


@dataclass(frozen=True)
class SharingOptions(FrozenOptions):
    """The same with a covariance."""

    covariance_dtype: str = option("float16", "how the covariance is stored", choices=("float16", "float32"))


class LinearScores(OfFeatures):
    """Scores of images: a linear classifier of what is kept of their features."""

    weight: Tensor
    bias: Tensor

    def __init__(self, net: Network, projection: Projection, weight: Tensor, bias: Tensor, classes: Sequence[int],
                 width: int) -> None:
        super().__init__(net)
        self.projection, self.classes, self.width = projection, list(classes), width
        self.register_buffer("weight", weight.float())
        self.register_buffer("bias", bias.float())

    def features(self, x: Tensor) -> Tensor:
        """What is kept of them."""
        z = self.net.features(x)
        with torch.autocast(z.device.type, enabled=False):
            return self.projection(z)

    def logits(self, z: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return by_class(z @ self.weight.T + self.bias, self.classes, self.width)


class Frozen(Method):
    """Means of the classes, of what a projection leaves of their features. It never trains.

    The projection is drawn from the seed, so it takes no bytes, and its first numbers are the same however many there
    are: where classes come and room gets short, what is stored is cut, and is what fewer numbers would have given.
    """

    by_head = False
    trains = False
    fills_budget = True
    keeps = "a mean for each class"
    Options = FrozenOptions

    def __init__(self, tools: Tools, options: FrozenOptions) -> None:
        super().__init__(tools, options)
        self.by_budget = options.project == "auto" and tools.settings.budget is not None
        self.numbers = self.chosen()
        means, others = self.parts(self.numbers)
        self.means, self.others = self.keep(means), [self.keep(part) for part in others]
        self.made: Projection | None = None
        self.cached: tuple[list[Tensor], Tensor, Tensor] | None = None

    def wants_training(self, task: Task) -> bool:
        return False

    # -- what a method says of itself ------------------------------------------------------------------------

    def widest(self) -> int:
        """The most numbers that can be kept of a feature vector."""
        return self.net.dim

    def usual(self) -> int:
        """How many are kept where nobody says anything."""
        return self.net.dim

    def parts(self, numbers: int) -> tuple[ClassMeans, list[Covariances]]:
        """What is kept, of so many numbers a feature vector."""
        return ClassMeans(numbers, self.options.prototype_dtype), []

    def project(self, numbers: int) -> Projection:
        """What is kept of a feature vector: all of it where no number is left out."""
        if numbers == self.net.dim and not self.by_budget:
            return Projection(self.options.tukey, None)
        drawn = directions(numbers, self.net.dim, self.tools.settings.seed)
        return Projection(self.options.tukey, orthonormal(drawn))

    def count(self, z: Tensor, labels: Tensor) -> None:
        """Take in what is kept of a task's features."""
        self.means.update(z, labels)

    def classifier(self) -> tuple[Tensor, Tensor]:
        """Weights (classes, numbers) and biases."""
        raise TypeError(f"{type(self).__name__} defines no classifier")

    def chosen(self) -> int:
        """The numbers that --project asks for; those of a budget are found when classes come."""
        said, most = self.options.project, self.widest()
        if said in ("auto", "full"):
            return self.usual() if said == "auto" and not self.by_budget else most
        if not said.isascii() or not said.isdigit() or not 0 < int(said[:10]) <= most:
            raise UserError(f"--project {shown(said)}: give auto, full or a whole number from 1 to {most:,}")
        return int(said)

    # -- learning --------------------------------------------------------------------------------------------

    def end_task(self, task: Task) -> None:
        with self.tools.timed("statistics"):
            self.narrow(self.fitting(self.horizon(task)))
            z, labels = self.task_features(task)
            self.count(self.projection(z).cpu(), labels.cpu())

    @property
    def projection(self) -> Projection:
        if self.made is None:
            self.made = self.project(self.numbers).to(self.tools.device)
        return self.made

    def narrow(self, numbers: int) -> None:
        """Keep the first so many numbers of everything."""
        if numbers != self.numbers:
            self.numbers, self.made = numbers, None
            for part in (self.means, *self.others):
                part.narrow(numbers)

    def forget(self, label: int) -> list[str]:
        self.cached = None
        return super().forget(label)

    def fitting(self, at: Horizon) -> int:
        """Numbers of a feature vector that the budget has room for by then: never more than now."""
        budget = self.tools.settings.budget
        if not self.by_budget or budget is None:
            return self.numbers
        most, unit = self.numbers if len(self.means) else self.widest(), self.means.a_byte
        return unit * largest(lambda n: file_size(self.plan_of(unit * n, at)) <= budget,
                              max(min(LEAST, most) // unit, 1), most // unit)

    def plan_of(self, numbers: int, at: Horizon) -> Plan:
        means, others = self.parts(numbers)
        plans = [means.plan(at), *(part.plan(at) for part in others)]
        return super().planned(at, 0) | {name: shaped for plan in plans for name, shaped in plan.items()}

    def planned(self, at: Horizon, rows: int) -> Plan:
        return self.plan_of(self.fitting(at), at)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """A memory whose numbers followed a budget says by its shape how many they are."""
        stored = state.get(f"{self.means.name}/features")
        self.cached = None
        super().load_state({})
        if self.by_budget and stored is not None:
            numbers = stored.shape[-1] * self.means.a_byte
            if stored.ndim != 2 or not 0 < numbers <= self.widest():
                raise DataError(f"the memory's prototypes have shape {tuple(stored.shape)}, expected up to "
                                f"{self.widest()} numbers each")
            self.narrow(numbers)
        super().load_state(state)

    def absorb(self, other: Any, numbers: Mapping[int, int]) -> None:
        for one in (self, other):
            one.narrow(min(self.numbers, other.numbers))
        self.add(other, numbers)
        self.narrow(self.fitting(Horizon(tuple(self.seen))))

    def add(self, other: Any, numbers: Mapping[int, int]) -> None:
        """Add the counts of another, of as many numbers a feature vector."""
        for label in other.means.classes:
            self.means.join(numbers[label], other.means.get([label])[0], other.means.counts[label])

    # -- predicting ------------------------------------------------------------------------------------------

    def predictor(self) -> nn.Module:
        if not len(self.means):
            return self.net
        classes = self.means.classes
        made_of = [torch.tensor(classes), self.means.get(classes), *(part.triangle(0) for part in self.others)]
        if self.cached is None or not all(map(torch.equal, self.cached[0], made_of)):
            self.cached = made_of, *self.classifier()
        _, weight, bias = self.cached
        scores = LinearScores(self.net, self.projection, weight, bias, classes, self.seen[-1] + 1)
        return scores.to(self.tools.device)

    @torch.no_grad()
    def nearness(self, x: Tensor) -> Tensor:
        """The cosine of an image's features and the class mean that is nearest: a class more does not move it, unless
        the image is of that class."""
        means = nn.functional.normalize(self.means.get(self.means.classes).float(), dim=1)
        z = nn.functional.normalize(self.projection(self.net.features(x)), dim=1)
        return (z @ means.to(z.device).T).amax(1).double().cpu()

    def discriminant(self, **numbers: float | str | None) -> Addition | None:
        """How a class is added where the classifier goes by means, with one covariance or none."""
        if self.options.prototype_dtype == "int4":  # which a device does not read
            return None
        stored = {name.rpartition("/")[2]: tensor for name, tensor in self.state().items()}
        del stored["labels"]  # rows are those of the classes seen, in their order
        return Addition("discriminant", stored, {"dtype": self.options.prototype_dtype, "covariance_dtype": "float32",
                                                 "shrinkage": None, **numbers})


class Sharing(Frozen):
    """Beside the means one covariance within classes, for all of them: both added up exactly as pictures come."""

    keeps = "a mean for each class and one covariance for all"
    Options = SharingOptions

    def parts(self, numbers: int) -> tuple[ClassMeans, list[Covariances]]:
        means, _ = super().parts(numbers)
        return means, [Covariances(numbers, self.options.covariance_dtype, "shared covariance")]

    def count(self, z: Tensor, labels: Tensor) -> None:
        new = Moments.of(z, labels)
        self.store(self.moments() + new, new.classes)

    def add(self, other: Any, numbers: Mapping[int, int]) -> None:
        new = other.moments().renumbered(numbers)
        self.store(self.moments() + new, new.classes)

    def moments(self) -> Moments:
        """What is stored."""
        classes, dim = self.means.classes, self.numbers
        if not classes:
            return Moments.of(torch.empty(0, dim), torch.empty(0, dtype=torch.int64))
        counts = torch.tensor([float(self.means.counts[c]) for c in classes], dtype=torch.float64)
        return Moments(torch.tensor(classes), counts, self.means.get(classes).double(),
                       self.others[0].get(0) * counts.sum())

    def store(self, moments: Moments, classes: Tensor) -> None:
        """Put these in place of what is stored; only of `classes` there are new pictures."""
        at = torch.isin(moments.classes, classes)
        self.means.put(classes.tolist(), moments.means[at].float(), moments.counts[at].long().tolist())
        self.others[0].set(0, moments.scatter / moments.counts.sum())
