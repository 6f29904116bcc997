"""A learner to an ONNX file that predicts without torch. Nothing is written unless it says what the learner says."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protocore.data.folders import look
from protocore.device.container import CLASSES, FORMAT, LEARNT, META, packed
from protocore.device.pictures import RESIZE, as_pictures
from protocore.errors import DataError, UserError, shown
from protocore.files import write_atomic
from protocore.learn import arrays
from protocore.learn.arrays import Images, Labels
from protocore.learn.graph import frozen_graph, graph_bytes, in_whole_numbers, onnx_of, program_bytes, program_of
from protocore.methods.base import Addition, Method, sample_rows
from protocore.pictures import ImageShape
from protocore.schema import is_scalar
from protocore.version import __version__

if TYPE_CHECKING:
    from protocore.device import Classifier
    from protocore.learn.learner import Learner

TOLERANCE = 1e-4  # of a score or feature, times the picture's largest one where that is above 1
MOST_PICTURES = 512  # that are looked at
NOISE = 16  # pictures, where there are no real ones
AT_ONCE = 32
NEEDED = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Parity:
    """How far the file is from the learner, seen on these pictures."""

    pictures: int
    of: str  # the memory, the caller, or noise
    difference: float  # the largest of any score or feature, over the picture's largest one where that is above 1


@dataclass(frozen=True)
class Int8:
    """What whole numbers cost, on pictures that their ranges were not taken from where there are enough."""

    calibrated: int  # pictures that the ranges were taken from
    pictures: int
    agreement: float  # share of the pictures that get the same name
    accuracy: float | None  # None where nobody told the names
    float_accuracy: float | None
    float_bytes: int


@dataclass(frozen=True)
class Export:
    """What was written."""

    path: Path
    bytes: int
    classes: int
    sha256: str
    parity: Parity
    int8: Int8 | None
    fixed: str | None  # why a device cannot add classes; None: it can
    pt2: Path | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path), "pt2": None if self.pt2 is None else str(self.pt2)}


@dataclass(frozen=True)
class Sample:
    """Pictures to compare on, uint8, and where somebody knows them their columns among the scores (-1: not a class)."""

    images: Tensor
    of: str
    columns: Tensor | None = None

    def some(self, rows: Tensor) -> Sample:
        return Sample(self.images[rows], self.of, None if self.columns is None else self.columns[rows])


def export_learner(learner: Learner, path: Path, *, int8: bool = False, pt2: Path | None = None,
                   pictures: Images | None = None, labels: Labels | None = None,
                   told: Callable[[str], None] = lambda what: None) -> Export:
    """Write the file, and torch's own program to `pt2` where that is wanted; `told` hears what is being done."""
    _check(learner, path, pt2)
    method, sample = learner.method, sample_of(learner, pictures, labels)
    if int8 and sample.of == "noise":
        raise UserError(f"{path}: --int8 needs real pictures to find the ranges of values, and the memory of this "
                        "learner holds none; give some with --pictures FOLDER")
    told("following the network")
    mirrored = learner.settings.mirror and learner.front is None
    addition = None if mirrored else method.addition()
    graph = frozen_graph(learner.predictor(), method.seen, learner.front)
    program = program_of(graph, sample.images)
    model = onnx_of(program, graph.outputs)
    about = _about(learner, None if addition else _fixed(method, mirrored))
    learnt = {} if addition is None else {LEARNT: _learnt(addition, about["classes"])}

    def file(of: Any, **more: Any) -> bytes:
        return graph_bytes(of, {META: json.dumps(about | more, allow_nan=False)} | learnt)

    told("comparing with torch")
    expected = run_module(graph, sample.images)[: len(graph.public)]
    floats = opened(path, file(model))
    parity = Parity(len(sample.images), sample.of, apart(run_file(floats, sample.images, graph.public), expected))
    _refuse(path, parity.difference, "onnxruntime")
    stored = None if pt2 is None else program_bytes(program)
    if pt2 is not None and stored is not None:
        again = torch.export.load(io.BytesIO(stored)).module()
        _refuse(pt2, apart(run_module(again, sample.images)[: len(expected)], expected), "torch.export")
    measured = None
    if int8:
        told("writing it in whole numbers")
        model, measured = _quantised(path, model, file, floats, sample)
    data = file(model, parity=asdict(parity), int8=None if measured is None else asdict(measured))
    done = opened(path, data)
    if pt2 is not None and stored is not None:
        write_atomic(pt2, stored)
    write_atomic(path, data)
    return Export(path, len(data), len(method.seen), done.seal, parity, measured, about["fixed"], pt2)


def _check(learner: Learner, path: Path, pt2: Path | None) -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(f"{path}: exporting needs {', '.join(missing)}: pip install 'protocore[export]'")
    if pt2 is not None and pt2 == path:
        raise UserError(f"{path}: the ONNX file and torch's program cannot have one name; give --torch another")
    for one in filter(None, (path, pt2)):
        if one.is_dir():
            raise UserError(f"{one}: is a folder; give the name of a file in it")
    if not learner.method.seen:
        raise UserError(f"{path}: this learner has learned nothing yet, so there is nothing to export; learn first")
    if learner.tools.space == "codec":
        raise UserError(f"{path}: with --replay-space codec every picture passes through the codec "
                        f"{learner.settings.codec} before the network, which a graph does not hold; learn with "
                        "--replay-space mix to export")
    for label in learner.classes_:
        if not is_scalar(label):
            raise UserError(f"{path}: the label {shown(label)} cannot be stored; labels that are exported are texts, "
                            "numbers, True, False or None")


def sample_of(learner: Learner, pictures: Images | None, labels: Labels | None) -> Sample:
    """The caller's pictures, else those of the memory as they are decoded, else noise."""
    at = {number: column for column, number in enumerate(learner.method.seen)}
    if pictures is not None:
        x = arrays.as_bytes(arrays.checked_images(pictures, learner.image_shape))
        if not len(x):
            raise UserError("there are no pictures to compare on; give one or more, or none at all")
        named = {**dict(zip(learner.class_names, range(len(learner.classes_)), strict=True)),
                 **dict(zip(learner.classes_, range(len(learner.classes_)), strict=True))}
        columns = None if labels is None else \
            torch.tensor([at.get(named.get(label, -1), -1) for label in arrays.as_labels(labels, len(x))])
        return Sample(x, "the caller", columns).some(sample_rows(len(x), MOST_PICTURES))
    for store in learner.method.stores():  # with a network in front they hold what that made of pictures
        if len(store) and tuple(store.images.shape[1:]) == tuple(learner.image_shape):
            columns = torch.tensor([at.get(label, -1) for label in store.labels.tolist()])
            return Sample(store.images, "the memory", columns).some(sample_rows(len(store), MOST_PICTURES))
    generator = torch.Generator().manual_seed(0)
    return Sample(torch.randint(256, (NOISE, *learner.image_shape), generator=generator, dtype=torch.uint8), "noise")


def pictures_of(folder: Path, shape: ImageShape) -> tuple[np.ndarray, list[str], list[str]]:
    """Some pictures of a folder with one folder a class, the names of their classes, and what cannot be read."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give one that has a folder of pictures for each class")
    files = [(folder / name / file, name) for name in look(folder).folders for file, _ in look(folder / name).pictures]
    found, labels, skipped = [], [], []
    for path, name in [files[row] for row in sample_rows(len(files), MOST_PICTURES).tolist()]:
        try:
            found.append(as_pictures(path, shape))
            labels.append(name)
        except DataError as error:
            skipped.append(str(error))
    if not found:
        raise DataError(f"{folder}: no class folders with pictures that can be read; put the pictures of each class "
                        "into one named after it")
    return np.concatenate(found), labels, skipped


def _fixed(method: Method, mirrored: bool) -> str:
    """Why a device cannot add classes."""
    why = "predicts with outputs that were trained" if method.by_head else "needs more than features for that"
    if mirrored:
        why = "predicts from mirror images too (--mirror)"
    return f"{method.name} {why}; a class is added by learning with torch and exporting again"


def _about(learner: Learner, fixed: str | None) -> dict[str, Any]:
    """What the metadata says, beside what was measured."""
    method, shape = learner.method, learner.image_shape
    return {"format": FORMAT, "version": __version__, "method": method.name, "image_shape": list(shape),
            "classes": [learner.classes_[number] for number in method.seen],
            "input": f"pictures: uint8 (N, {shape[0]}, {shape[1]}, {shape[2]}), 0 to 255, channels first"
                     f"{', red green blue' if shape[0] == 3 else ''}; the graph normalises them",
            "resize": RESIZE, "temperature": learner.temperature, "fixed": fixed}


def _learnt(addition: Addition, classes: list[Any]) -> str:
    about = {"format": CLASSES, "version": __version__, "kind": addition.kind, "classes": classes, **addition.numbers}
    return base64.b64encode(packed({k: v.numpy() for k, v in addition.tensors.items()}, about)).decode()


# -- comparing ---------------------------------------------------------------------------------------------


@torch.no_grad()
def run_module(module: Any, images: Tensor) -> list[np.ndarray]:
    """Outputs of a module for all pictures, some at a time."""
    parts = [module(part) for part in images.split(AT_ONCE)]
    return [torch.cat(of).numpy() for of in zip(*parts, strict=True)]


def run_file(classifier: Classifier, images: Tensor, outputs: list[str]) -> list[np.ndarray]:
    """Outputs of a graph: of the first picture alone, then of the others, so that no number of them is built in."""
    x = images.numpy()
    found = [np.concatenate([classifier.run(name, part) for part in (x[:1], x[1:]) if len(part)]) for name in outputs]
    if classifier.learns:  # what a device says by what it knows of classes is what the graph says
        found[0] = np.stack([found[0], classifier.scores(x)])
    return found


def apart(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference of any value, over the size of the largest one of the same row where that is above 1: a
    score near 0 is what large numbers have left, and is rounded as these are."""
    return max(float((np.abs(a - b) / np.maximum(np.abs(b).max(-1, keepdims=True), 1)).max())
               for a, b in zip(found, expected, strict=True))


def _refuse(path: Path, difference: float, what: str) -> None:
    if not difference <= TOLERANCE:  # NaN is not within it either
        raise DataError(f"{path}: not written, because {what} differs from torch by {difference:.2g} where at most "
                        f"{TOLERANCE:g} is allowed; another version of onnxruntime or torch may agree")


def opened(path: Path, data: bytes) -> Classifier:
    from protocore.device import Classifier

    return Classifier(data, path, threads=torch.get_num_threads())


def _quantised(path: Path, model: Any, file: Callable[[Any], bytes], floats: Classifier,
               sample: Sample) -> tuple[Any, Int8]:
    """The graph in whole numbers, and how well it does beside the other one."""
    rows = torch.arange(len(sample.images))
    ranges, rest = (rows[::2], rows[1::2]) if len(rows) >= 2 * NOISE else (rows, rows)
    made = in_whole_numbers(model, sample.images[ranges].numpy())
    measured = sample.some(rest)
    names = [c.scores(measured.images.numpy()).argmax(1) for c in (floats, opened(path, file(made)))]
    accuracy: list[float | None] = [None, None]
    if measured.columns is not None and bool((known := measured.columns.numpy() >= 0).any()):
        accuracy = [float((got == measured.columns.numpy())[known].mean()) for got in names]
    return made, Int8(len(ranges), len(rest), float((names[0] == names[1]).mean()), accuracy[1], accuracy[0],
                      len(file(model)))
