"""A learner: network, method and memory in one object with `learn` and `predict`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from protocore.config import Resolved, plural
from protocore.data.augment import augmentation, to_float
from protocore.data.stream import Task
from protocore.errors import UserError, shown
from protocore.learn import arrays
from protocore.learn.arrays import Images, Labels
from protocore.learn.certificate import Certificate
from protocore.learn.checkpoint import Checkpoint
from protocore.learn.device import machine_for
from protocore.learn.export import Export, export_learner
from protocore.learn.features_kept import KeptFeatures
from protocore.learn.files import load_learner, restore, save_learner, take_pack
from protocore.learn.flops import StepFlops
from protocore.learn.forgetting import forget
from protocore.learn.front import Unscaled, feature_task, features_of, nbytes
from protocore.learn.loop import Plan, fit, grow_head, make_optimizer, plan_for
from protocore.learn.networks import codec_for, networks, refuse_views
from protocore.learn.room import check_task
from protocore.learn.settings import check_image_size, settings_of
from protocore.learn.words import python_words
from protocore.memory.ledger import Kind, Ledger, check_budget, ledger_of
from protocore.memory.pack import write_pack
from protocore.methods import method_named
from protocore.methods.base import Progress, Tools, sample_rows
from protocore.pictures import ImageShape
from protocore.ranks.split import split

SIDE = 32  # pixels of pictures, where nobody says
PREPARED = 2000  # pictures of the first task that a backbone may look at before it is trained
StepHook = Callable[[int, int, Tensor], None]  # step, of how many, loss


class Mirrored(nn.Module):
    """The mean of what a predictor says of pictures and of their mirror images."""

    def __init__(self, predictor: nn.Module) -> None:
        super().__init__()
        self.inner = predictor

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) + self.inner(x.flip(3))) / 2


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

    def __init__(self, method: str = "protocore", image_shape: ImageShape | None = None, *,
                 backbone: str | nn.Module | None = None, mean: Sequence[float] | None = None,
                 std: Sequence[float] | None = None, classes: int | None = None, **settings: Any) -> None:
        """A learner for pictures of shape (channels, height, width): (3, 32, 32), or what `backbone` was trained for.

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
            side = config.settings.image_size or SIDE
            shape = (3, side, side) if image_shape is None else image_shape
            self._build(config, arrays.checked_shape(shape), module, mean, std, classes)

    @classmethod
    def of(cls, config: Resolved, image_shape: ImageShape, *, backbone: nn.Module | None = None,
           mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
           classes: int | None = None, stored: Checkpoint | None = None) -> Self:
        """A learner of a configuration, as a run makes it; or with a network ready for what is `stored`."""
        learner = cls.__new__(cls)
        learner.speaks_python = False
        learner._build(config, arrays.checked_shape(image_shape), backbone, mean, std, classes, stored=stored)
        return learner

    def _build(self, config: Resolved, image_shape: ImageShape, backbone: nn.Module | None,
               mean: Sequence[float] | None, std: Sequence[float] | None, classes: int | None, *,
               stored: Checkpoint | None = None) -> None:
        self.config = config
        s = self.settings = config.settings
        torch.manual_seed(s.seed)
        self.machine = machine_for(s, image_shape)
        self.image_shape = image_shape
        if s.full_head and classes is None and config.sources["full_head"].chosen:
            raise UserError("--full-head needs to know how many classes there will be, which a learner of one's own "
                            "tasks does not; leave it out")
        check_image_size(s, image_shape)
        self.own_backbone = backbone is not None
        self.outputs = (classes or 0) if s.full_head else 0  # of the head from the start

        made = networks(s, image_shape, backbone, mean, std, stored)
        self.record, self.weights = made.record, made.weights
        self.net = made.net.to(self.machine.device)
        self.front = None if made.front is None else made.front.to(self.machine.device)
        self._features: tuple[Task, Task] | None = None  # the open task, and that of its features
        if self.front is not None and stored is None:
            refuse_views(config)
        if self.machine.channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        codec = codec_for(s, image_shape, self.front).to(self.machine.device)
        method = method_named(s.method).form_for(s)
        space = "mix" if s.replay_space == "auto" else s.replay_space
        if codec.lossless or not method.replays:  # there is no gap to close
            space = "raw"
        augment = augmentation(s.augment if self.front is None else "none")
        self.tools = Tools(self.net, s, codec, augment, self.machine.device, space=space,
                           on_device=self.machine.images, build=made.build)
        self.method = method(self.tools, config.options)
        if self.method.extra is not None:
            self.method.extra.to(self.machine.device)
        self.classes_: list[Hashable] = []
        self.tasks_ = 0
        self.seconds = self.tools.seconds
        self.seconds["learn"] = 0.0
        self.flops = StepFlops(counting=False)  # a run counts them
        self.images_learned = 0
        self.held: dict[str, int] = {}  # bytes beside the memory while a task was learned
        self.temperature = 1.0  # of probabilities: see `learn/calibration.py`
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
            task = self.inward(task, progress)
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
        task = self.inward(task, progress)
        self._code(task)
        plan = Plan(len(task), self.settings.batch, -(-len(task) // self.settings.batch),
                    (self.settings.seed, self.tasks_), shuffled=False)
        if start == 0:
            self.begin(task, keep_optimizer=True)
        self._fit(task, plan, start, on_step)
        self.finish(task, progress)
        self._close(task)
        self._rehearse()

    def inward(self, task: Task, progress: Progress | None = None) -> Task:
        """The task as the method learns it: behind a front one of features, made once; its pictures are let go."""
        if self.front is None:
            return task
        if self._features is None or self._features[0] is not task:
            assert isinstance(self.net.backbone, Unscaled)
            spared = 0.0 if self.front.kept is None else self.front.kept.spared
            with self.tools.timed("features"):
                self._features = task, feature_task(self.front, task, self.machine, progress)
            if self.front.kept is not None:
                self.seconds["features"] += self.front.kept.spared - spared
            self.net.backbone.follow(self.front)
            task.close()
        return self._features[1]

    def keep_features(self, folder: Path) -> None:
        """Read features behind a front that were made before, and keep those that are made, in this folder. Seconds
        are counted as when they were made."""
        if self.front is not None:
            self.front.kept = KeptFeatures(folder, self.front.net, self.front.shape[0], self.machine.device)

    def begin(self, task: Task, *, keep_optimizer: bool = False) -> None:
        """Grow the head, tell the method, make the optimiser."""
        if not self.method.seen:
            self.net.prepare(lambda: self.machine.images(task.take(sample_rows(len(task), PREPARED))))
        classes = max(max(task.classes) + 1, self.outputs)
        grow_head(self.net, classes * self.method.outputs, self.optimizer if keep_optimizer else None)
        self.method.meet(task.classes)
        if self.optimizer is None or not keep_optimizer:
            self.optimizer = make_optimizer(self.trained(), self.settings)
        check_task(self, task)
        with self.tools.timed("learn"):
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
        codec = self.tools.codec
        if codec.learns and not codec.learned and self.method.replays:
            with self.tools.timed("code"):
                codec.fit(to_float(task.take(sample_rows(len(task), PREPARED))))
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
        self._features = None
        self.tools.codings.forget()

    def _fit(self, task: Task, plan: Plan, start: int, on_step: StepHook | None) -> None:
        assert self.optimizer is not None
        clock, flops = self.tools.clock, self.flops

        def after(step: int, loss: Tensor) -> None:
            flops.done()
            self.images_learned += plan.size(step)
            if on_step:
                with clock.part(None, wait=False):
                    on_step(step + 1, plan.steps, loss)
            if step + 1 < plan.steps:
                flops.next(plan.size(step + 1))

        if self.method.wants_training(task):
            rehearsed = plan.seed[1] < 0
            with clock.part("learn"), flops.stretch(len(self.classes_), self.tasks_ > 0, rehearsed):
                flops.next(plan.size(start))
                fit(self.method, task, plan, self.optimizer, self.machine, start=start, after_step=after)

    def finish(self, task: Task, progress: Progress | None) -> None:
        """End-of-task work of the method; then the memory is held against its budget."""
        if progress:
            self.tools.progress = progress
        with self.tools.timed("learn"):
            self.method.end_task(task)
        self.tools.progress = lambda what, done, of: None
        self.tasks_ += 1
        self.held |= self.method.held()
        check_budget(self.ledger(), self.settings.budget, len(self.method.seen))

    def forget(self, label: Hashable, pictures: Images | None = None, held_out: Images | None = None, *,
               unlearn_steps: int = 0) -> Certificate:
        """Forget a class: nothing that is kept of it stays, and the certificate says what is left in the network.

        The certificate measures on `pictures` of it that were learned (else on its exemplars), and tests them against
        `held_out` ones, which were not. With `unlearn_steps` the network then unlearns them.

        >>> learner.forget("sky").accuracy_after, learner.classes_
        (0.0, ['sea'])
        """
        with python_words(self.speaks_python, type(self.config.options)):
            return forget(self, label, pictures, held_out, unlearn_steps)

    # -- predicting ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def ready(self, images: Images) -> Tensor:
        """Images as the predictor meets them: behind a front as features, in codec space as the codec shows them."""
        x = arrays.checked_images(images, self.image_shape)
        if self.front is not None:
            x = features_of(self.front, x, self.machine)
        return self.through_codec(arrays.as_bytes(x)) if self.tools.space == "codec" else x

    @property
    def makes_ready(self) -> bool:
        """Whether `ready` does anything, which is then worth doing once."""
        return self.front is not None or self.tools.space == "codec"

    @torch.no_grad()
    def scores(self, images: Images, *, ready: bool = False) -> Tensor:
        """Scores of every class (N, classes) for uint8 or float images (N, C, H, W); unseen classes are -inf.

        They are made ready first, unless they are so already.
        """
        if not self.method.seen:
            raise UserError("this learner has learned nothing yet; call learn or partial_fit first")
        x = torch.as_tensor(images) if ready else self.ready(images)
        self.net.eval()
        seen = torch.tensor(self.method.seen)
        predictor, at_once = self.predictor(), self.net.at_once()

        def scored(rows: Tensor) -> Tensor:
            full = torch.full((len(rows), int(seen[-1]) + 1), float("-inf"))
            for at, part in enumerate(rows.split(at_once)):
                with self.machine.autocast():
                    raw = predictor(self.machine.images(part)).float().cpu()
                full[at * at_once : (at + 1) * at_once, seen] = raw[:, seen]
            return full

        return split(scored, x)

    def predictor(self) -> nn.Module:
        """The module that predicts, as the learner is now: float images in [0, 1], made ready, to class scores."""
        predictor = self.method.predictor()
        return Mirrored(predictor) if self.settings.mirror and self.front is None else predictor

    def predict(self, images: Images) -> np.ndarray:
        """The label of each picture: members of `classes_`.

        >>> learner.predict(pictures[18:22]).tolist()
        ['sky', 'sky', 'sea', 'sea']
        """
        return arrays.as_array(self.classes_)[self.scores(images).argmax(1).numpy()]

    def predict_proba(self, images: Images) -> np.ndarray:
        """Probabilities (N, classes) in the order of `classes_`; each row sums to 1. `temperature` says how sure they
        are, which somebody has found on held-out pictures (1: nobody has).

        >>> learner.predict_proba(pictures[:2]).sum(1).round(6).tolist()
        [1.0, 1.0]
        """
        scores = self.scores(images).double()
        padded = torch.full((len(scores), len(self.classes_)), float("-inf"), dtype=torch.float64)
        padded[:, : scores.shape[1]] = scores / self.temperature
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
        network = {} if self.front is None else {"network": nbytes(self.front), "head": nbytes(self.net)}
        kinds = dict.fromkeys((*network, *self.held), Kind("network"))
        kinds |= {decoder: Kind("decoder")} | self.method.kinds()
        shared = {decoder: codec.shared_bytes} | network | self.held | self.method.held()
        return ledger_of(self.memory(), shared, kinds=kinds)

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

    def export(self, path: str | Path, *, int8: bool = False, pt2: str | Path | None = None,
               pictures: Images | None = None, labels: Labels | None = None) -> Export:
        """An ONNX file that predicts without torch, names included; `protocore.device` reads it.

        It is compared with this learner on `pictures` (else on those of the memory, else on noise) and not written
        unless it agrees. `int8` makes it smaller; `labels` then tell its accuracy. `pt2`: torch's own program, too.
        """
        with python_words(self.speaks_python, type(self.config.options)):
            return export_learner(self, Path(path), int8=int8, pt2=None if pt2 is None else Path(pt2),
                                  pictures=pictures, labels=labels)

    def restore(self, path: str | Path, task: Task | None = None) -> dict[str, Any]:
        """Take up what `save` wrote; `task` is the open task where it was saved inside one. Returns `extra`."""
        return restore(self, Path(path), task)
