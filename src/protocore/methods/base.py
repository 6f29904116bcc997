"""What a method is: a small class with hooks, called by the one training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, overload

import torch
from torch import Tensor, nn

from protocore.backbones import Backbone, Network
from protocore.codecs.base import Codec
from protocore.config import Options, Settings
from protocore.data.augment import Transform, to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.codebook import Codebook
from protocore.memory.codings import Codings
from protocore.memory.kept import Kept, renumbered
from protocore.memory.ledger import Kind
from protocore.memory.plan import Horizon, Plan, file_size
from protocore.memory.quota import Allowance
from protocore.memory.store import ExemplarStore
from protocore.methods.clock import Clock
from protocore.methods.state import Attribute, Without

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many
K = TypeVar("K", bound=Kept)
V = TypeVar("V")


def sample_rows(length: int, count: int) -> Tensor:
    """So many rows at most, evenly over a task."""
    return torch.linspace(0, length - 1, min(count, length)).long()


def sample_of(task: Task, codings: Codings, count: int = 64) -> list[bytes]:
    """What is stored of some of the task's images, evenly over it: it tells what an exemplar will take."""
    rows = sample_rows(len(task), count)
    return codings.of(task.take(rows), rows)


@dataclass
class Batch:
    """One step's current data. `images` are as they are (uint8), `x` is their augmented view (float)."""

    images: Tensor
    x: Tensor
    labels: Tensor
    rows: Tensor
    first_pass: bool  # whether the task's samples are seen for the first time
    # Which rows of `x` look raw while exemplars look decoded (--replay-space mix); None: all look alike. Whoever
    # compares old with new classes on them learns that raw means new: see `Method.fair`.
    raw: Tensor | None = None
    # What `loss` found out and `after_step` needs (logits of this step, say). Where a step evaluates the loss
    # several times (--cflat), `after_step` sees those of the first evaluation.
    notes: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Tools:
    """What the house gives to a method."""

    net: Network
    settings: Settings
    codec: Codec
    augment: Transform
    device: torch.device
    space: str = "raw"  # what current images pass through: raw, mix or codec
    clock: Clock = field(default_factory=Clock)
    progress: Progress = lambda what, done, of: None
    on_device: Callable[[Tensor], Tensor] = lambda x: x  # moves images, in the memory format in use
    build: Callable[[], Network] | None = None  # makes an untrained network like `net`, without classes

    def __post_init__(self) -> None:
        self.codings = Codings(self.codec, lambda: self.timed("code"))
        if self.device.type == "cuda":
            self.clock.wait = lambda: torch.cuda.synchronize(self.device)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds so far by part of the work, learning among them."""
        return self.clock.seconds

    @property
    def allowance(self) -> Allowance:
        s = self.settings
        return Allowance(s.spc, s.capacity, s.budget)

    def store(self, name: str = "exemplars") -> ExemplarStore:
        return ExemplarStore(self.codec, name, self.codings)

    def fresh(self, outputs: int) -> Network:
        """An untrained network of the same kind, on the device: a proxy or reference model for a selection."""
        if self.build is None:
            raise TypeError("these tools were made without `build`, so they cannot make a network")
        net = self.build()
        if isinstance(net.backbone, Backbone) and isinstance(self.net.backbone, Backbone):
            net.backbone.follow(self.net.backbone)
        net.grow(outputs)
        return net.to(self.device)

    def view(self, images: Tensor) -> Tensor:
        """An augmented float view of uint8 images, on the device."""
        return self.on_device(self.augment(images.to(self.device)))  # bytes travel, floats do not

    def timed(self, what: str) -> AbstractContextManager[None]:
        """Count the seconds of a part (condensing, selecting, coding) apart from those of what is around it."""
        return self.clock.part(what)


@dataclass(frozen=True)
class Addition:
    """What somebody without torch needs to add a class: what is known of those seen, a row each, in their order.

    `kind` and the names of the tensors are those of `protocore.device`; `numbers` are settings beside them.
    """

    kind: str
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, float | str | None]


@dataclass(frozen=True)
class NoOptions(Options):
    """A method without options of its own."""


class Method:
    """Hooks of a continual-learning method; every one of them has a default, `loss` apart.

    A subclass states its paper in the docstring's first line, its options in `Options`, and in `defaults` and
    `presets` the settings and options that its paper asks for. The key of a preset is its name, followed by what else
    must hold: `paper cifar100` is for that data set (what `data get` calls it), `paper online` and `paper cflat` for
    runs with these flags, `fast synthetic` for those with an option of that value (--exemplars synthetic). Of those
    that hold the later wins, those for online runs last.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    fits: ClassVar[tuple[str, ...]] = ("offline", "online", "blurry")
    keeps: ClassVar[str] = "nothing"
    Options: ClassVar[type] = NoOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    replays: ClassVar[bool] = False  # whether stored exemplars are shown to the network beside current images
    trains: ClassVar[bool] = True  # whether it ever trains the network
    fills_budget: ClassVar[bool] = False  # whether --budget says how much it keeps, though these are no exemplars
    sees_everything: ClassVar[bool] = False  # the upper bound: all tasks at once
    outputs: ClassVar[int] = 1  # rows of the head for each class
    by_head: ClassVar[bool] = True  # whether the head predicts, and not means or statistics of the classes seen
    invents = False  # whether exemplars may be other pictures than those of the data (means, condensed ones)
    checks: ClassVar[str] = ""  # what stands behind the implementation, for `protocore list methods`

    def __init__(self, tools: Tools, options: Any) -> None:
        self.tools = tools
        self.net = tools.net
        self.options = options
        self._kept: list[Kept] = []
        self._held: list[Kept] = []
        if tools.codec.learns and self.replays:
            self.keep(Codebook(tools.codec))
        self.seen: list[int] = []  # classes of the tasks begun so far, ascending
        self.known: list[int] = []  # those of the tasks before the present one, whether or not they are in it again
        self.current: list[int] = []  # classes of the present task
        self.first_classes: list[int] = []  # classes of the first task, online of the first window
        self.hold("known")
        self.extra: nn.Module | None = None  # trained with the network, not used to predict (a projection, say)

    @classmethod
    def form_for(cls, settings: Settings) -> type[Method]:
        """The class that learns under these settings: a method may have a form of its own for online streams."""
        return cls

    def wants_training(self, task: Task) -> bool:
        """Whether the network is trained on this task at all."""
        return True

    # -- what it keeps -------------------------------------------------------------------------------------

    @overload
    def keep(self, thing: str, name: str | None = None, kind: str | None = None, *, without: Without | None = None,
             mixed: str = "") -> None: ...
    @overload
    def keep(self, thing: K) -> K: ...
    def keep(self, thing: K | str, name: str | None = None, kind: str | None = None, *, without: Without | None = None,
             mixed: str = "") -> K | None:
        """Register what outlives a task: a store, or an attribute by its name (which the file may call otherwise).

        It is counted, planned for, saved and loaded. What is not registered is gone after the task. So that a class
        can be forgotten, say of an attribute what it is `without` a class, or what stays `mixed` in it.
        """
        named = isinstance(thing, str)
        self._kept.append(Attribute(self, thing, name, kind, without=without, mixed=mixed) if named else thing)
        return None if named else thing

    @overload
    def hold(self, thing: str, name: str | None = None) -> None: ...
    @overload
    def hold(self, thing: K) -> K: ...
    def hold(self, thing: K | str, name: str | None = None) -> K | None:
        """Register what a checkpoint inside a task needs beside that: it is saved and loaded there, and not kept."""
        self._held.append(Attribute(self, thing, name) if isinstance(thing, str) else thing)
        return None if isinstance(thing, str) else thing

    def check_forgets(self) -> None:
        """Before anything is changed: everything that is kept must say how a class is taken out of it."""
        if odd := [getattr(thing, "name", type(thing).__name__) for thing in self._kept if not thing.forgets()]:
            raise UserError(f"the method {self.name} cannot forget a class: its {odd[0]} does not say how one is taken "
                            "out; define `forget` for it, or keep it with without= or mixed=")

    def forget(self, label: int) -> list[str]:
        """Give a class up, between two tasks; the numbers of those after it move one down.

        Returns, in words, what of it stays mixed with other classes. A method that has more of a class than what it
        keeps and holds, a cache say, adds to this.
        """
        self.seen, self.current, self.first_classes = (
            renumbered(classes, label) for classes in (self.seen, self.current, self.first_classes))
        mixed = [words for thing in self._kept for words in thing.forget(label)]
        for thing in self._held:  # what belonged to the last task
            thing.load({})
        if self.seen:
            return mixed
        for thing in self._kept:  # what was of several classes was of forgotten ones only
            thing.load({})
        return []

    # -- learning ------------------------------------------------------------------------------------------

    def meet(self, classes: Sequence[int]) -> None:
        """A task of these classes comes."""
        self.known, self.current = list(self.seen), list(classes)
        self.seen = sorted({*self.seen, *classes})
        self.first_classes = self.first_classes or list(classes)

    def open_task(self, task: Task) -> None:
        """A task is open, at its beginning or at a checkpoint inside it: what can be read off it again."""

    def begin_task(self, task: Task) -> None:
        """Before the first step, after `open_task`. The head has grown, `seen`, `known` and `current` are up to date.

        Not called where a task is taken up from a checkpoint: what is made here must be kept or held.
        """

    def loss(self, batch: Batch) -> Tensor:
        """What a step minimises."""
        raise TypeError(f"{type(self).__name__} defines no loss")

    def fair(self, logits: Tensor, raw: Tensor | None) -> Tensor:
        """Logits for a loss over all classes, current rows first; -inf where a raw row meets a class of older data.

        Raw rows are always new ones, so a loss that held them against old classes would teach the look. They compete
        among the classes of the task; old and new are compared on what looks decoded.
        """
        if raw is None or not self.old:
            return logits
        others = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
        others[self.current] = False
        apart = torch.zeros(len(logits), 1, dtype=torch.bool, device=logits.device)
        apart[: len(raw), 0] = raw.to(logits.device)
        return logits.masked_fill(apart & others, float("-inf"))

    def after_step(self, batch: Batch) -> None:
        """After the optimiser's step."""

    def end_task(self, task: Task) -> None:
        """After the last step, while the task's data can still be read."""

    def rehearse(self) -> Task | None:
        """After `end_task`: data for a second phase of training, of the method's own memory (None: no such phase)."""
        return None

    @property
    def old(self) -> list[int]:
        """Classes seen before that are not in the present task."""
        return sorted(set(self.seen) - set(self.current))

    def predictor(self) -> nn.Module:
        """The module that predicts, as the method is now: float images (N, C, H, W) in [0, 1] to class scores.

        It holds all that it needs, the network too, so that it can be exported and served. The default is the head.
        """
        return self.net

    def addition(self) -> Addition | None:
        """How a class is added without training; None: only by learning."""
        return None

    def scores(self, x: Tensor) -> Tensor:
        """Class scores (N, classes) of float images; the largest wins."""
        return self.predictor()(x)

    def nearness(self, x: Tensor) -> Tensor | None:
        """How near each of these images (made ready, as floats) is to what was learned, whatever the number of classes;
        None: only the scores tell."""
        return None

    def absorb(self, other: Any, numbers: Mapping[int, int]) -> None:
        """Add what the method of another learner keeps (same settings, same frozen network), whose classes get these
        numbers; `seen` has them already."""
        raise UserError(f"--method {self.name} keeps {self.keeps}, which does not add up: only learners of methods "
                        "that count (ncm, slda, ranpac) can be merged")

    # -- what follows from what it keeps -------------------------------------------------------------------

    def stores(self) -> list[ExemplarStore]:
        """The exemplar stores, to be looked at."""
        return [store for thing in self._kept for store in thing.stores()]

    def planned(self, at: Horizon, rows: int) -> Plan:
        """What `state` will be then, with so many exemplars in all: its size is known before the training."""
        return _merged(thing.plan(at, rows) for thing in self._kept)

    def held(self) -> dict[str, int]:
        """Bytes held only while a task is learned (a copy of the network): shown in the ledger beside the memory."""
        return _merged(thing.held() for thing in self._held)

    def kinds(self) -> dict[str, Kind]:
        """What each row of the ledger is, by its name."""
        kept = {name: Kind(thing.kind, thing.origin) for thing in self._kept for name in thing.tensors()}
        return kept | {name: Kind(thing.kind) for thing in self._held for name in thing.held()}

    def horizon(self, task: Task) -> Horizon:
        """The present task. Exemplars of unequal size count as those stored on average, else as the task's images."""
        sizes = {store.name: store.size(lambda: sample_of(task, self.tools.codings)) for store in self.stores()}
        return Horizon(tuple(self.seen), sizes, images=len(task), of_class=int(task.labels.bincount().max()))

    def bytes_at(self, at: Horizon, rows: int) -> int:
        return file_size(self.planned(at, rows))

    def records(self) -> dict[str, Tensor]:
        """What a figure wants to know and the memory does not keep: a file of its own in the run folder."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Everything that must survive the task, as it is stored: the ledger counts these bytes."""
        return _merged(thing.tensors() for thing in self._kept)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` gave."""
        for thing in self._kept:
            thing.load(state)

    def scratch(self) -> dict[str, Tensor]:
        """What a checkpoint inside a task needs beyond `state`; gone when the task is closed."""
        return _merged(thing.tensors() for thing in self._held)

    def load_scratch(self, scratch: Mapping[str, Tensor]) -> None:
        """Take up what `scratch` gave."""
        for thing in self._held:
            thing.load(scratch)

    # -- helpers for end-of-task work ----------------------------------------------------------------------

    def images(self, task: Task, rows: Tensor) -> Tensor:
        """The task's images (uint8) as the network meets them: in codec space as the codec shows them."""
        return task.take_coded(rows) if self.tools.space == "codec" else task.take(rows)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The network in evaluation mode; afterwards as it was."""
        was_training = self.net.training
        self.net.eval()
        try:
            yield
        finally:
            self.net.train(was_training)

    @torch.no_grad()
    def task_features(self, task: Task) -> tuple[Tensor, Tensor]:
        """Features and labels of the task's un-augmented images, the network in evaluation mode."""
        with self.evaluating():
            z = [self.net.features(self.tools.on_device(to_float(self.images(task, rows))))
                 for rows in torch.arange(len(task)).split(256)]
        return torch.cat(z), task.labels.to(self.tools.device)


def _merged(parts: Iterable[dict[str, V]]) -> dict[str, V]:
    return {name: value for part in parts for name, value in part.items()}
