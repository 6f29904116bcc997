"""A learner: network, method and memory in one object with `learn` and `predict`."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from protocore.backbones import Network, build_network
from protocore.codecs import codec_named
from protocore.config import Resolved, plural
from protocore.data.augment import augmentation
from protocore.data.stream import Task
from protocore.errors import UserError, shown
from protocore.learn import arrays
from protocore.learn.arrays import Images, Labels
from protocore.learn.device import machine_for
from protocore.learn.files import load_learner, restore, save_learner, take_pack
from protocore.learn.loop import Plan, fit, grow_head, make_optimizer, plan_for
from protocore.learn.room import check_task
from protocore.learn.settings import settings_of
from protocore.learn.words import python_words
from protocore.memory.ledger import Kind, Ledger, check_budget, ledger_of
from protocore.memory.pack import write_pack
from protocore.methods import method_named
from protocore.methods.base import Progress, Tools
from protocore.pictures import ImageShape

StepHook = Callable[[int, int, Tensor], None]  # step, of how many, loss


class Learner:
    """Learns classes as they come; what it keeps between two calls is the network and the method's memory.

    Attributes that end in an underscore are learned: `classes_` (labels in order of arrival), `tasks_` (how many
    times it has learned).

    >>> import numpy as np, protocore
    >>> learner = protocore.Learner("protocore", image_shape=(1, 8, 8), budget="4KB", steps=40)
    >>> pictures = np.zeros((40, 1, 8, 8), np.uint8)
    >>> pictures[20:, :, 4:] = 255
    >>> learner.partial_fit(pictures, ["sky"] * 20 + ["sea"] * 20).classes_
    ['sea', 'sky']
    """

    def __init__(self, method: str = "protocore", image_shape: ImageShape = (3, 32, 32), *,
                 backbone: str | nn.Module | None = None, mean: Sequence[float] | None = None,
                 std: Sequence[float] | None = None, classes: int | None = None, **settings: Any) -> None:
        """A learner for pictures of shape (channels, height, width).

        `settings` are those of `protocore run`, with underscores: budget="64KB", spc=5, epochs=10. `backbone` is a
        name or a module of one's own; `mean` and `std`, a number a channel, normalise pictures between 0 and 1;
        `classes` is how many there will be, where somebody knows (full_head).
        """
        self.speaks_python = True
        with python_words(True):
            module = backbone if isinstance(backbone, nn.Module) else None
            named = {} if module is not None or backbone is None else {"backbone": backbone}
            config = settings_of({"method": method, **named, **settings})
        with python_words(True, type(config.options)):
            self._build(config, arrays.checked_shape(image_shape), module, mean, std, classes)

    @classmethod
    def of(cls, config: Resolved, image_shape: ImageShape, *, backbone: nn.Module | None = None,
           mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
           classes: int | None = None) -> Self:
        """A learner of a configuration, as a run makes it."""
        learner = cls.__new__(cls)
        learner.speaks_python = False
        learner._build(config, arrays.checked_shape(image_shape), backbone, mean, std, classes)
        return learner

    def _build(self, config: Resolved, image_shape: ImageShape, backbone: nn.Module | None,
               mean: Sequence[float] | None, std: Sequence[float] | None, classes: int | None) -> None:
        self.config = config
        s = self.settings = config.settings
        torch.manual_seed(s.seed)
        self.machine = machine_for(s)
        self.image_shape = image_shape
        if s.full_head and classes is None and config.sources["full_head"].chosen:
            raise UserError("--full-head needs to know how many classes there will be, which a learner of one's own "
                            "tasks does not; leave it out")
        self.own_backbone = backbone is not None
        self.outputs = (classes or 0) if s.full_head else 0  # of the head from the start

        def build() -> Network:
            return build_network(s.backbone if backbone is None else backbone, image_shape, width=s.width, norm=s.norm,
                                 head=s.head, mean=mean, std=std)

        self.net = build()
        self.net.to(self.machine.device)
        if self.machine.channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        codec = codec_named(s.codec, image_shape).to(self.machine.device)
        method = method_named(s.method).form_for(s)
        space = "mix" if s.replay_space == "auto" else s.replay_space
        if codec.lossless or not method.replays:  # there is no gap to close
            space = "raw"
        self.tools = Tools(self.net, s, codec, augmentation(s.augment), self.machine.device, space=space,
                           on_device=self.machine.images, build=build)
        self.method = method(self.tools, config.options)
        if self.method.extra is not None:
            self.method.extra.to(self.machine.device)
        self.classes_: list[Hashable] = []
        self.tasks_ = 0
        self.seconds: dict[str, float] = {"learn": 0.0}
        self.images_learned = 0
        self.held: dict[str, int] = {}  # bytes beside the memory while a task was learned
        self.optimizer: torch.optim.Optimizer | None = None

    def __repr__(self) -> str:
        size = "".join(f", {name}={value}" for name in ("budget", "capacity", "spc")
                       if (value := getattr(self.settings, name)) is not None)  # one of them, at most
        return (f"Learner({self.settings.method!r}, image_shape={self.image_shape}{size}): "
                f"{plural(len(self.classes_), 'class')}, {self.ledger().total:,} bytes kept")

    # -- learning ------------------------------------------------------------------------------------------

    def partial_fit(self, images: Images, labels: Labels) -> Self:
        """Learn these pictures: new classes, or more of known ones. Labels are names, numbers, anything hashable.

        >>> import numpy as np, protocore
        >>> learner = protocore.Learner("er", image_shape=(1, 8, 8), spc=2, steps=2)
        >>> learner.partial_fit(np.zeros((4, 1, 8, 8), np.uint8), [7, 5, 7, 5]).classes_
        [5, 7]
        """
        with python_words(self.speaks_python, type(self.config.options)):
            x = arrays.as_bytes(arrays.checked_images(images, self.image_shape))
            return self.learn(Task.from_arrays(x, arrays.as_labels(labels, len(x))))

    def learn(self, task: Task, *, progress: Progress | None = None, on_step: StepHook | None = None,
              start: int = 0) -> Self:
        """Learn a task and close it. Classes are known by their names, which the task carries.

        >>> from protocore import Task
        >>> learner.learn(Task.from_arrays(255 - pictures[:20], ["night"] * 20)).classes_
        ['sea', 'sky', 'night']

        `start` is the step from which an interrupted task goes on.
        """
        with python_words(self.speaks_python, type(self.config.options)):
            if start == 0:
                arrays.number(task, self.classes_, self.image_shape)
            self._code(task)
            plan = plan_for(task, self.settings, self.tasks_)
            if start == 0:
                self.begin(task)
            self._fit(task, plan, start, on_step)
            self.finish(task, progress)
            self._close(task)
            self._rehearse()
        return self

    def learn_window(self, task: Task, *, progress: Progress | None = None, on_step: StepHook | None = None,
                     start: int = 0) -> None:
        """One pass over a part of an online stream; the optimiser goes on from the part before."""
        if start == 0:
            arrays.number(task, self.classes_, self.image_shape)
        self._code(task)
        plan = Plan(len(task), self.settings.batch, -(-len(task) // self.settings.batch),
                    (self.settings.seed, self.tasks_), shuffled=False)
        if start == 0:
            self.begin(task, keep_optimizer=True)
        self._fit(task, plan, start, on_step)
        self.finish(task, progress)
        self._close(task)
        self._rehearse()

    def begin(self, task: Task, *, keep_optimizer: bool = False) -> None:
        """Grow the head, tell the method, make the optimiser."""
        classes = max(max(task.classes) + 1, self.outputs)
        grow_head(self.net, classes * self.method.outputs, self.optimizer if keep_optimizer else None)
        self.method.meet(task.classes)
        if self.optimizer is None or not keep_optimizer:
            self.optimizer = make_optimizer(self.trained(), self.settings)
        check_task(self, task)
        self.method.open_task(task)
        self.method.begin_task(task)

    def trained(self) -> nn.Module:
        """Whatever the optimiser moves: the network, and what the method trains beside it."""
        return self.net if self.method.extra is None else nn.ModuleList([self.net, self.method.extra])

    def _rehearse(self) -> None:
        """The second phase of a method that has one (Rainbow Memory online): epochs on its memory, in the same loop."""
        memory = self.method.rehearse()
        if memory is not None:
            self._fit(memory, plan_for(memory, self.settings, -self.tasks_), 0, None)
            memory.close()

    def _code(self, task: Task) -> None:
        self.tools.codings.forget()
        if self.tools.space != "raw":
            with self.tools.timed("code"):
                task.code(self.through_codec)

    @torch.no_grad()
    def through_codec(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """uint8 images as they come back from the codec; those of the open task (these rows of it) are coded once."""
        codings = self.tools.codings
        return codings.images(codings.of(images, rows))

    def _close(self, task: Task) -> None:
        task.close()
        self.tools.codings.forget()

    def _fit(self, task: Task, plan: Plan, start: int, on_step: StepHook | None) -> None:
        assert self.optimizer is not None
        clock = time.perf_counter()

        def after(step: int, loss: Tensor) -> None:
            nonlocal clock
            now = time.perf_counter()
            self.seconds["learn"] += now - clock
            self.images_learned += plan.size(step)
            if on_step:
                on_step(step + 1, plan.steps, loss)
            clock = time.perf_counter()

        if self.method.wants_training(task):
            fit(self.method, task, plan, self.optimizer, self.machine, start=start, after_step=after)

    def finish(self, task: Task, progress: Progress | None) -> None:
        """End-of-task work of the method, timed apart; then the memory is held against its budget."""
        if progress:
            self.tools.progress = progress
        before = sum(self.tools.seconds.values())
        clock = time.perf_counter()
        self.method.end_task(task)
        inside = sum(self.tools.seconds.values()) - before
        self.seconds["learn"] += time.perf_counter() - clock - inside
        self.tools.progress = lambda what, done, of: None
        self.tasks_ += 1
        self.held |= self.method.held()
        check_budget(self.ledger(), self.settings.budget, len(self.method.seen))

    # -- predicting ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def scores(self, images: Images, *, coded: bool = False) -> Tensor:
        """Scores of every class (N, classes) for uint8 or float images (N, C, H, W); unseen classes are -inf.

        In codec space they pass through the codec first, unless they are `coded` already.
        """
        x = arrays.checked_images(images, self.image_shape)
        if not self.method.seen:
            raise UserError("this learner has learned nothing yet; call learn or partial_fit first")
        if self.tools.space == "codec" and not coded:
            x = self.through_codec(arrays.as_bytes(x))
        self.net.eval()
        seen = torch.tensor(self.method.seen)
        parts = []
        for part in x.split(512):
            with self.machine.autocast():
                raw = self.method.scores(self.machine.images(part)).float().cpu()
            full = torch.full((len(part), int(seen[-1]) + 1), float("-inf"))
            full[:, seen] = raw[:, seen]
            parts.append(full)
        return torch.cat(parts) if parts else torch.empty(0, int(seen[-1]) + 1)

    def predict(self, images: Images) -> np.ndarray:
        """The label of each picture: members of `classes_`.

        >>> learner.predict(pictures[18:22]).tolist()
        ['sky', 'sky', 'sea', 'sea']
        """
        return arrays.as_array(self.classes_)[self.scores(images).argmax(1).numpy()]

    def predict_proba(self, images: Images) -> np.ndarray:
        """Probabilities (N, classes) in the order of `classes_`; each row sums to 1.

        >>> learner.predict_proba(pictures[:2]).sum(1).round(6).tolist()
        [1.0, 1.0]
        """
        scores = self.scores(images).double()
        padded = torch.full((len(scores), len(self.classes_)), float("-inf"), dtype=torch.float64)
        padded[:, : scores.shape[1]] = scores
        return padded.softmax(1).numpy()

    def score(self, images: Images, labels: Labels) -> float:
        """Accuracy: the share of the pictures whose label is predicted, between 0 and 1.

        >>> learner.score(pictures, ["sky"] * 40)
        0.5
        """
        wanted = arrays.as_labels(labels, len(images))
        if not wanted:
            raise UserError("there are no pictures to score")
        return sum(a == b for a, b in zip(self.predict(images).tolist(), wanted, strict=True)) / len(wanted)

    # -- what is kept --------------------------------------------------------------------------------------

    @property
    def class_names(self) -> list[str]:
        """`classes_` as texts, for files and tables."""
        return [label if isinstance(label, str) else shown(label) for label in self.classes_]

    def memory(self) -> dict[str, Tensor]:
        return self.method.state()

    def ledger(self) -> Ledger:
        codec = self.tools.codec
        decoder = f"decoder {codec.spec}"
        kinds = dict.fromkeys(self.held, Kind("network")) | {decoder: Kind("decoder")} | self.method.kinds()
        return ledger_of(self.memory(), {decoder: codec.shared_bytes} | self.held | self.method.held(), kinds=kinds)

    def save_pack(self, path: str | Path) -> None:
        """The memory alone, as a file to ship: `load_pack` of a learner of the same kind takes it up."""
        if odd := [label for label in self.classes_ if not isinstance(label, str)]:
            raise UserError(f"{path}: a pack names classes by texts, which {shown(odd[0])} is not: learn them as texts")
        origins = {store.name: str(store.origin) for store in self.method.stores()}
        write_pack(Path(path), self.memory(), class_names=self.class_names, codec=self.tools.codec,
                   method=self.settings.method, origins=origins)

    def load_pack(self, path: str | Path) -> Self:
        """Take up a memory that was shipped: same method, codec and picture shape; this learner must be new."""
        with python_words(self.speaks_python, type(self.config.options)):
            take_pack(self, Path(path))
        return self

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Everything needed to go on, at any step: one safetensors file, written atomically."""
        save_learner(self, Path(path), extra or {})

    @classmethod
    def load(cls, path: str | Path, *, backbone: nn.Module | None = None) -> Self:
        """The learner that `save` wrote, with no data at hand; `backbone` again where it was a module of one's own.

        >>> import numpy as np, protocore, tempfile
        >>> learner = protocore.Learner("er", image_shape=(1, 8, 8), spc=2, steps=2)
        >>> _ = learner.partial_fit(np.zeros((4, 1, 8, 8), np.uint8), ["a", "b", "a", "b"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     learner.save(f"{folder}/mine.learner")
        ...     protocore.Learner.load(f"{folder}/mine.learner").classes_
        ['a', 'b']
        """
        with python_words(True):
            learner = load_learner(cls, Path(path), backbone)
        learner.speaks_python = True
        return learner

    def restore(self, path: str | Path, task: Task | None = None) -> dict[str, Any]:
        """Take up what `save` wrote; `task` is the open task where it was saved inside one. Returns `extra`."""
        return restore(self, Path(path), task)
