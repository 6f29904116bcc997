"""The file of a learner: network, memory, optimiser and names, with a hash over all of it. No pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protocore.errors import DataError, shown
from protocore.files import parse_json, read_tensors, serialise, write_atomic
from protocore.schema import Fields, Scalar

FORMAT = "protocore learner 2"
_WAY_OUT = "restore the file from a copy"
GROUPS = ("net", "front", "extra", "method", "scratch", "optimizer")


@dataclass(frozen=True)
class Header:
    """What the tensors do not say."""

    settings: Mapping[str, Scalar]
    options: Mapping[str, Scalar]
    image_shape: tuple[int, ...]
    classes: list[Scalar]  # labels in order of arrival
    outputs: int  # of the head from the start, 0 where it grows
    tasks: int
    seen: list[int]
    current: list[int]
    first_classes: list[int]
    seconds: Mapping[str, float]
    inner_seconds: Mapping[str, float]
    images: int
    held: Mapping[str, int]  # bytes held during tasks
    threads: int
    own_backbone: bool  # whether the network's features come from a module of the user's
    has_optimizer: bool
    sources: Mapping[str, str] = field(default_factory=dict)
    processes: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)  # what the caller of `save` added
    network: Mapping[str, Any] = field(default_factory=dict)  # what builds it, where no name of a table does
    weights: str = ""  # sha256 of those that the network began with, where it was trained before
    temperature: float = 1.0  # by which scores are divided before they are probabilities


@dataclass(frozen=True)
class Checkpoint:
    """A file that was read, and found whole."""

    path: Path
    header: Header
    tensors: Mapping[str, Tensor]

    def part(self, group: str) -> dict[str, Tensor]:
        return {k.removeprefix(f"{group}/"): v for k, v in self.tensors.items() if k.startswith(f"{group}/")}

    @property
    def numbers(self) -> int:
        """In all its tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def refuse(self, reason: object) -> DataError:
        return DataError(f"{self.path}: not a learner of this kind ({shown(str(reason), 300)}); {_WAY_OUT}")


def write_checkpoint(path: Path, header: Header, tensors: Mapping[str, Tensor]) -> None:
    """All or nothing."""
    kept = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    try:
        text = json.dumps({"format": FORMAT, **asdict(header)}, allow_nan=False)
    except ValueError:  # NaN as a label, say
        raise DataError(f"{path}: a label or a measurement is not a number, which JSON cannot hold") from None
    write_atomic(path, serialise(kept, {"protocore": text, "sha256": _sum(text, kept)}))


def write_blank(path: Path, extra: Mapping[str, Any]) -> None:
    """The file of a learner that is still to be: what the caller says of it, and no settings."""
    header = Header(settings={}, options={}, image_shape=(1, 1, 1), classes=[], outputs=0, tasks=0, seen=[], current=[],
                    first_classes=[], seconds={}, inner_seconds={}, images=0, held={}, threads=torch.get_num_threads(),
                    processes=1, own_backbone=False, has_optimizer=False, extra=extra)
    write_checkpoint(path, header, {"rng": torch.get_rng_state()})


def read_checkpoint(path: Path) -> Checkpoint:
    """A learner's file of any origin: whole, and every field of its kind, or an error that says what is wrong."""
    tensors, metadata = read_tensors(path)
    text = metadata.get("protocore", "")
    document = parse_json(text.encode(), path) if text else None
    if not isinstance(document, dict) or not isinstance(document.get("format"), str):
        raise DataError(f"{path}: not the file of a learner; give one that `Learner.save` or a run has written")
    if document["format"] != FORMAT:
        raise DataError(f"{path}: made by another version ({shown(document['format'])}, this one reads {FORMAT!r}); "
                        "use the version that wrote it")
    if metadata.get("sha256") != _sum(text, tensors):
        raise DataError(f"{path}: damaged, its content is not what was written; {_WAY_OUT}")
    if any(k.partition("/")[0] not in (*GROUPS, "rng", "rng cuda") for k in tensors) or "rng" not in tensors:
        raise DataError(f"{path}: damaged, its tensors are not those of a learner; {_WAY_OUT}")
    return Checkpoint(path, _header(Fields(document, path, _WAY_OUT)), tensors)


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and values."""
    return _sum("", {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _sum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


def _header(f: Fields) -> Header:
    shape = tuple(f.wholes("image_shape"))
    if len(shape) != 3 or not all(0 < side <= 1 << 16 for side in shape):
        f.refuse("image_shape", "channels, height and width", list(shape))
    classes = f.labels("classes")
    header = Header(
        settings=f.scalars("settings"), options=f.scalars("options"), image_shape=shape, classes=classes,
        outputs=f.whole("outputs"), tasks=f.whole("tasks"), seen=f.wholes("seen"), current=f.wholes("current"),
        first_classes=f.wholes("first_classes"), seconds=f.number_table("seconds"),
        inner_seconds=f.number_table("inner_seconds"), images=f.whole("images"),
        held={k: int(v) for k, v in f.number_table("held").items()}, threads=f.whole("threads"),
        processes=f.maybe(f.whole, "processes", 1), own_backbone=f.truth("own_backbone"),
        has_optimizer=f.truth("has_optimizer"),
        sources={k: str(v) for k, v in f.scalars("sources").items()}, extra=f.fields("extra").values,
        network=f.maybe(f.fields, "network", Fields({}, f.name, _WAY_OUT)).values,
        weights=f.maybe(f.text, "weights", ""), temperature=f.maybe(f.number, "temperature", 1.0))
    if header.temperature <= 0:
        f.refuse("temperature", "a number above 0", header.temperature)
    for name in ("seen", "current", "first_classes"):
        numbers = getattr(header, name)
        if numbers != sorted(set(numbers)) or (numbers and numbers[-1] >= max(len(classes), 1)):
            f.refuse(name, "numbers of classes, ascending", numbers)
    return header
