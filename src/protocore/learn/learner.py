"""A learner: network, method and memory in one object with `learn` and `predict`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protocore.backbones import Network, build_network
from protocore.codecs import codec_named
from protocore.config import Resolved
from protocore.data.augment import augmentation, to_float
from protocore.data.stream import Task
from protocore.errors import DataError, UserError
from protocore.files import read_tensors, serialise, write_atomic
from protocore.learn.device import machine_for
from protocore.learn.loop import Plan, fit, grow_head, make_optimizer, plan_for
from protocore.learn.room import check_task
from protocore.memory.codings import to_uint8
from protocore.memory.ledger import Ledger, check_budget, ledger_of
from protocore.methods import method_named
from protocore.methods.base import Progress, Tools

FORMAT = "protocore checkpoint 1"
StepHook = Callable[[int, int, Tensor], None]  # step, of how many, loss


class Learner:
    """Learns tasks one after the other; what it keeps between them is the method's memory and the network.

    Attributes that end in an underscore are learned: `classes_` (names in order of arrival), `tasks_`.
    """

    def __init__(self, config: Resolved, image_shape: tuple[int, int, int], *,
                 mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
                 classes: int | None = None) -> None:
        self.config = config
        s = self.settings = config.settings
        torch.manual_seed(s.seed)
        self.machine = machine_for(s)
        self.image_shape = image_shape
        if s.full_head and classes is None and config.sources["full_head"].startswith(("flag", "--")):
            raise UserError("--full-head needs to know how many classes there will be, which a learner of one's own "
                            "tasks does not; leave it out")
        self._outputs = (classes or 0) if s.full_head else 0

        def build() -> Network:
            return build_network(s.backbone, image_shape, width=s.width, norm=s.norm, head=s.head, mean=mean, std=std)

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
        self.classes_: list[str] = []
        self.tasks_ = 0
        self.seconds: dict[str, float] = {"learn": 0.0}
        self.images_learned = 0
        self._optimizer: torch.optim.Optimizer | None = None

    # -- learning ------------------------------------------------------------------------------------------

    def learn(self, task: Task, *, class_names: Sequence[str] | None = None, progress: Progress | None = None,
              on_step: StepHook | None = None, start: int = 0) -> Learner:
        """Learn a task and close it. `start` is the step from which an interrupted task goes on."""
        self._code(task)
        plan = plan_for(task, self.settings, self.tasks_)
        if start == 0:
            self.begin(task, class_names)
        self._fit(task, plan, start, on_step)
        self.finish(task, progress)
        self._close(task)
        self._rehearse()
        return self

    def learn_window(self, task: Task, *, class_names: Sequence[str] | None = None, progress: Progress | None = None,
                     on_step: StepHook | None = None, start: int = 0) -> None:
        """One pass over a part of an online stream; the optimiser goes on from the part before."""
        self._code(task)
        plan = Plan(len(task), self.settings.batch, -(-len(task) // self.settings.batch),
                    (self.settings.seed, self.tasks_), shuffled=False)
        if start == 0:
            self.begin(task, class_names, keep_optimizer=True)
        self._fit(task, plan, start, on_step)
        self.finish(task, progress)
        self._close(task)
        self._rehearse()

    def begin(self, task: Task, class_names: Sequence[str] | None = None, *, keep_optimizer: bool = False) -> None:
        """Grow the head, tell the method, make the optimiser."""
        if tuple(task.image_shape) != tuple(self.image_shape):
            raise UserError(f"the task's images are {task.image_shape}, this learner was made for {self.image_shape}")
        if not len(task):
            raise UserError("the task holds no images")
        classes = max(max(task.classes) + 1, self._outputs)
        grow_head(self.net, classes * self.method.outputs, self._optimizer if keep_optimizer else None)
        names = class_names or task.class_names or [str(c) for c in range(max(task.classes) + 1)]
        self.classes_ += list(names[len(self.classes_) : max(task.classes) + 1])
        self.method.current = list(task.classes)
        self.method.first_classes = self.method.first_classes or list(task.classes)
        self.method.seen = sorted({*self.method.seen, *task.classes})
        if self._optimizer is None or not keep_optimizer:
            self._optimizer = make_optimizer(self._trained(), self.settings)
        check_task(self, task)
        self.method.begin_task(task)

    def _trained(self) -> nn.Module:
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
                task.code(lambda images: self.through_codec(images, remember=True))

    @torch.no_grad()
    def through_codec(self, images: Tensor, *, remember: bool = False) -> Tensor:
        """uint8 images as they come back from the codec."""
        codings = self.tools.codings
        return torch.cat([codings.images(codings.of(part, remember=remember)) for part in images.split(256)])

    def _close(self, task: Task) -> None:
        task.close()
        self.tools.codings.forget()

    def _fit(self, task: Task, plan: Plan, start: int, on_step: StepHook | None) -> None:
        assert self._optimizer is not None
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
            fit(self.method, task, plan, self._optimizer, self.machine, start=start, after_step=after)

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
        check_budget(self.ledger(), self.settings.budget, len(self.method.seen))

    # -- predicting ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def scores(self, images: Tensor | np.ndarray, *, coded: bool = False) -> Tensor:
        """Scores of every class (N, classes) for uint8 or float images (N, C, H, W); unseen classes are -inf.

        In codec space they pass through the codec first, unless they are `coded` already.
        """
        x = torch.as_tensor(images)
        if x.ndim != 4 or tuple(x.shape[1:]) != tuple(self.image_shape):
            wanted = ", ".join(map(str, self.image_shape))
            raise UserError(f"images must have shape (N, {wanted}); met {tuple(x.shape)}")
        if not self.method.seen:
            raise UserError("this learner has learned nothing yet; call learn(task) first")
        if self.tools.space == "codec" and not coded:
            x = self.through_codec(x if x.dtype == torch.uint8 else to_uint8(x))
        self.net.eval()
        seen = torch.tensor(self.method.seen)
        parts = []
        for part in x.split(512):
            with self.machine.autocast():
                raw = self.method.scores(self.machine.images(to_float(part))).float().cpu()
            full = torch.full((len(part), int(seen[-1]) + 1), float("-inf"))
            full[:, seen] = raw[:, seen]
            parts.append(full)
        return torch.cat(parts) if parts else torch.empty(0, int(seen[-1]) + 1)

    def predict(self, images: Tensor | np.ndarray) -> Tensor:
        """The class numbers of these images; `classes_[number]` is the name."""
        return self.scores(images).argmax(1)

    # -- what is kept --------------------------------------------------------------------------------------

    def memory(self) -> dict[str, Tensor]:
        return self.method.state()

    def ledger(self) -> Ledger:
        codec = self.tools.codec
        return ledger_of(self.memory(), {f"decoder {codec.spec}": codec.shared_bytes} | self.method.held())

    def save_memory(self, path: Path) -> None:
        write_atomic(path, serialise(self.memory()))

    def save(self, path: Path, extra: dict[str, Any] | None = None) -> None:
        """Everything needed to go on, at any step: one safetensors file, written atomically."""
        tensors = {f"net/{k}": v for k, v in self.net.state_dict().items()}
        if self.method.extra is not None:
            tensors |= {f"extra/{k}": v for k, v in self.method.extra.state_dict().items()}
        tensors |= {f"method/{k}": v for k, v in self.method.state().items()}
        tensors |= {f"scratch/{k}": v for k, v in self.method.scratch().items()}
        if self._optimizer is not None:
            for index, state in self._optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    tensors[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
        tensors["rng"] = torch.get_rng_state()
        if self.machine.device.type == "cuda":
            tensors["rng cuda"] = torch.cuda.get_rng_state(self.machine.device)
        header = {
            "format": FORMAT, "config": self.config.to_json(), "image_shape": list(self.image_shape),
            "classes": self.classes_, "tasks": self.tasks_, "seen": self.method.seen, "current": self.method.current,
            "first_classes": self.method.first_classes,
            "seconds": self.seconds, "inner_seconds": self.tools.seconds, "images": self.images_learned,
            "has_optimizer": self._optimizer is not None, "extra": extra or {},
        }
        contiguous = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        write_atomic(path, serialise(contiguous, {"protocore": json.dumps(header)}))

    def restore(self, path: Path, task: Task | None = None) -> dict[str, Any]:
        """Take up what `save` wrote; `task` is the open task where it was saved inside one. Returns `extra`."""
        tensors, metadata = read_tensors(path)
        try:
            header = json.loads(metadata["protocore"])
            if header["format"] != FORMAT:
                raise DataError(f"{path}: made by another version ({header['format']!r}, this one reads {FORMAT!r})")
            part = {
                group: {k.removeprefix(group + "/"): v for k, v in tensors.items() if k.startswith(group + "/")}
                for group in ("net", "extra", "method", "scratch", "optimizer")
            }
            self.net.load_state_dict(part["net"])
            if self.method.extra is not None:
                self.method.extra.load_state_dict(part["extra"])
            self.classes_, self.tasks_ = list(header["classes"]), int(header["tasks"])
            self.method.seen, self.method.current = list(header["seen"]), list(header["current"])
            self.method.first_classes = list(header["first_classes"])
            self.seconds, self.tools.seconds = dict(header["seconds"]), dict(header["inner_seconds"])
            self.images_learned = int(header["images"])
            if task is not None:
                self.tools.resuming = True
                self.method.begin_task(task)  # on an empty memory: it must not touch what is taken up now
                self.tools.resuming = False
            self.method.load_state(part["method"])
            if task is not None:
                self.method.load_scratch(part["scratch"])
            self._optimizer = make_optimizer(self._trained(), self.settings) if header["has_optimizer"] else None
            if self._optimizer is not None:
                state: dict[int, dict[str, Tensor]] = {}
                for key, value in part["optimizer"].items():
                    index, _, name = key.partition("/")
                    state.setdefault(int(index), {})[name] = value
                blank = self._optimizer.state_dict()
                self._optimizer.load_state_dict({"state": state, "param_groups": blank["param_groups"]})
            torch.set_rng_state(tensors["rng"])
            if "rng cuda" in tensors:
                torch.cuda.set_rng_state(tensors["rng cuda"], self.machine.device)
            return header["extra"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{path}: not a checkpoint of this run ({error}); start again with --restart") from None
