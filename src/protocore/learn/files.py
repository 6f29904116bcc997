"""A learner to a file and back: what goes into the checkpoint, and how it is taken up again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from protocore.config import DEFAULT, Resolved, Settings, Source, resolve
from protocore.data.stream import Task
from protocore.errors import DataError, UserError, shown
from protocore.learn.checkpoint import Checkpoint, Header, read_checkpoint, write_checkpoint
from protocore.learn.loop import grow_head, make_optimizer
from protocore.learn.muon import state_of
from protocore.memory.codebook import take_codebook
from protocore.memory.pack import unpack
from protocore.methods import method_named
from protocore.ranks.group import world
from protocore.schema import is_scalar

if TYPE_CHECKING:
    from protocore.learn.learner import Learner

L = TypeVar("L", bound="Learner")
# Where it runs and what is measured, not what it is.
MACHINE = ("data_root", "strict", "threads", "memory_format", "device", "precision", "forward_transfer")


def save_learner(learner: Learner, path: Path, extra: Mapping[str, Any]) -> None:
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give the name of a file in it")
    for label in learner.classes_:
        if not is_scalar(label):
            raise UserError(f"{path}: the label {shown(label)} cannot be stored; labels that are saved are texts, "
                            "numbers, True, False or None")
    method = learner.method
    header = Header(
        settings=asdict(learner.settings), options=asdict(learner.config.options),
        sources={k: str(v) for k, v in learner.config.sources.items()}, image_shape=learner.image_shape,
        classes=list(learner.classes_), outputs=learner.outputs,  # type: ignore[arg-type]  # scalars, as seen above
        tasks=learner.tasks_, seen=method.seen, current=method.current, first_classes=method.first_classes,
        seconds=learner.seconds, inner_seconds=learner.tools.seconds, images=learner.images_learned, held=learner.held,
        threads=torch.get_num_threads(), processes=world(), own_backbone=learner.own_backbone,
        has_optimizer=learner.optimizer is not None, extra=extra, network=learner.record,
        weights=learner.weights, temperature=learner.temperature)
    write_checkpoint(path, header, tensors_of(learner))


def tensors_of(learner: Learner) -> dict[str, Tensor]:
    """Everything of a learner that is written to its file, but for the header."""
    method = learner.method
    tensors = {f"net/{k}": v for k, v in learner.net.state_dict().items()}
    if learner.front is not None:
        tensors |= {f"front/{k}": v for k, v in learner.front.state_dict().items()}
    if method.extra is not None:
        tensors |= {f"extra/{k}": v for k, v in method.extra.state_dict().items()}
    tensors |= {f"method/{k}": v for k, v in method.state().items()}
    tensors |= {f"scratch/{k}": v for k, v in method.scratch().items()}
    if learner.optimizer is not None:
        for index, state in learner.optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
    tensors["rng"] = torch.get_rng_state()
    if learner.machine.device.type == "cuda":
        tensors["rng cuda"] = torch.cuda.get_rng_state(learner.machine.device)
    return tensors


def load_learner(cls: type[L], path: Path, backbone: nn.Module | None) -> L:
    """A learner from a file alone."""
    return learner_of(cls, read_checkpoint(path), backbone)


def learner_of(cls: type[L], checkpoint: Checkpoint, backbone: nn.Module | None = None, task: Task | None = None) -> L:
    """A learner from what was read; `task` is the open one where it was saved inside one."""
    header, path = checkpoint.header, checkpoint.path
    if not header.settings:
        raise UserError(f"{path}: has learned nothing yet; teach it with `protocore learn`")
    if header.own_backbone and backbone is None:
        raise UserError(f"{path}: its network is a module of one's own; give it again with backbone=")
    config = config_of(checkpoint)
    shape = header.image_shape[0], header.image_shape[1], header.image_shape[2]
    learner = cls.of(config, shape, backbone=backbone if header.own_backbone else None,
                     classes=header.outputs or None, stored=checkpoint)
    take_up(learner, checkpoint, task)
    return learner


def config_of(checkpoint: Checkpoint) -> Resolved:
    """The configuration that a learner was saved with; what it did not know is at its default."""
    header = checkpoint.header
    method = method_named(str(header.settings.get("method")))
    known = {f.name for cls in (Settings, method.Options) for f in fields(cls)}
    stored = {k: v for k, v in {**header.settings, **header.options}.items() if v is not None}
    if strange := sorted(stored.keys() - known):
        raise DataError(f"{checkpoint.path}: has the setting {shown(strange[0])}, which this version does not know; "
                        "use the version that wrote it")
    config = resolve([(Source("file", str(checkpoint.path)), stored)], method.Options)
    told = {k: Source(v) if v in ("flag", "default") else Source("file", v) for k, v in header.sources.items()}
    return Resolved(config.settings, config.options, {k: told.get(k, DEFAULT) for k in config.sources})


def restore(learner: Learner, path: Path, task: Task | None) -> dict[str, Any]:
    """Take up what was saved by a learner of the same kind; `task` is the open one where it was saved inside one."""
    checkpoint = read_checkpoint(path)
    header = checkpoint.header
    mine, stored = asdict(learner.settings) | asdict(learner.config.options), {**header.settings, **header.options}
    others = [name for name in mine if name not in MACHINE and stored.get(name, mine[name]) != mine[name]]
    for what, there, here in (*((name, stored[name], mine[name]) for name in others),
                              ("method", header.settings.get("method"), learner.settings.method),
                              ("image shape", list(header.image_shape), list(learner.image_shape))):
        if there != here:
            raise DataError(f"{path}: the learner there has {what} {shown(there)}, this one {shown(here)}; take it up "
                            "with one of the same kind")
    take_up(learner, checkpoint, task)
    return dict(header.extra)


def take_up(learner: Learner, checkpoint: Checkpoint, task: Task | None) -> None:
    header, method, net = checkpoint.header, learner.method, learner.net
    try:
        net.load_state_dict(checkpoint.part("net"))
        if learner.front is not None:
            learner.front.load_state_dict(checkpoint.part("front"))
        if method.extra is not None:
            method.extra.load_state_dict(checkpoint.part("extra"))
        learner.classes_, learner.tasks_ = list[Hashable](header.classes), header.tasks
        method.seen, method.current = list(header.seen), list(header.current)
        method.first_classes = list(header.first_classes)
        learner.seconds.clear()
        learner.seconds.update({"learn": 0.0} | dict(header.inner_seconds) | dict(header.seconds))
        learner.images_learned, learner.held = header.images, dict(header.held)
        learner.weights, learner.temperature = header.weights, header.temperature
        method.load_state(checkpoint.part("method"))
        if task is not None:
            method.open_task(learner.inward(task))
            method.load_scratch(checkpoint.part("scratch"))
        learner.optimizer = make_optimizer(learner.trained(), learner.settings) if header.has_optimizer else None
        if learner.optimizer is not None:
            load_optimizer(learner.optimizer, checkpoint.part("optimizer"))
        torch.set_rng_state(checkpoint.tensors["rng"])
        if "rng cuda" in checkpoint.tensors:
            torch.cuda.set_rng_state(checkpoint.tensors["rng cuda"], learner.machine.device)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise checkpoint.refuse(error) from None


def load_optimizer(optimizer: torch.optim.Optimizer, stored: Mapping[str, Tensor]) -> None:
    """State by the number of the parameter; values of another shape than theirs are an error."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in stored.items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = value
    blank = optimizer.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state.items():
        shape = parameters[index].shape
        if values.keys() != state_of(optimizer, index):
            raise ValueError(f"the optimiser's state of parameter {index} is not complete")
        if odd := [name for name, value in values.items() if value.shape != shape and value.numel() != 1]:
            raise ValueError(f"the optimiser's {odd[0]} of parameter {index} is not of its shape")
    optimizer.load_state_dict({"state": state, "param_groups": blank["param_groups"]})


def take_pack(learner: Learner, path: Path) -> None:
    """The memory of a pack into a learner that has learned nothing yet; it must be of the same kind."""
    if learner.tasks_ or learner.classes_:
        raise UserError(f"{path}: this learner has learned {len(learner.classes_)} classes already; a pack is taken up "
                        "by a new one")
    pack = unpack(path)
    for what, there, here in (("method", pack.method, learner.settings.method),
                              ("picture shape", tuple(pack.image_shape), tuple(learner.image_shape))):
        if there != here:
            raise DataError(f"{path}: its {what} is {shown(there)}, this learner's is {shown(here)}; make one like it")
    if pack.codec == learner.tools.codec.spec:
        take_codebook(learner.tools.codec, pack.tensors)
    pack.check_codec(learner.tools.codec)
    labels = sorted({int(c) for name, t in pack.tensors.items() if name.endswith("/labels") for c in t.tolist()})
    if labels and labels[-1] >= len(pack.class_names):
        raise DataError(f"{path}: a class of its memory has no name; it is damaged")
    try:
        learner.classes_ = list(pack.class_names)
        learner.method.seen = learner.method.first_classes = labels
        if labels:
            grow_head(learner.net, max(labels[-1] + 1, learner.outputs) * learner.method.outputs, None)
        learner.method.load_state(pack.tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: not the memory of {learner.settings.method} with these settings "
                        f"({shown(str(error), 200)})") from None
