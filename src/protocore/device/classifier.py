"""A learner that was exported: names for pictures, and a further class by one forward pass over its pictures."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime

from protocore.device.container import (
    CLASSES,
    FORMAT,
    LEARNT,
    META,
    MOST_CLASSES,
    MOST_GRAPH,
    packed,
    seal_of,
    unpacked,
)
from protocore.device.pictures import as_pictures
from protocore.device.statistics import STATISTICS, Discriminant
from protocore.errors import DataError, UserError, shown
from protocore.files import parse_json, read_bytes, write_atomic
from protocore.schema import Fields, Scalar, is_scalar
from protocore.version import __version__

AT_ONCE = 32  # pictures: few enough that their maps stay in a small memory


class Classifier:
    """`classes` are the names, in the order of the columns of `scores` and `predict_proba`.

    What it learns is in memory until `save`. The graph's file is never written; what was learned lies beside it.
    """

    def __init__(self, data: bytes, path: Path, *, threads: int = 0) -> None:
        """From the bytes of an exported file; `path` is its name in errors, and where `save` writes beside it."""
        self.path, self.seal = path, seal_of(data, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of its own for every state of it
            raise DataError(f"{path}: onnxruntime {onnxruntime.__version__} cannot run it ({shown(str(error), 300)}); "
                            "use a newer one, or export it again") from None
        stored = self._session.get_modelmeta().custom_metadata_map
        self.about = Fields(parse_json(stored.get(META, "").encode(), path), path, "export it again")
        if self.about.text("format") != FORMAT:
            raise DataError(f"{path}: made by another version ({shown(self.about.text('format'))}, this one reads "
                            f"{FORMAT!r}); use the version that wrote it")
        channels, height, width = self.about.wholes("image_shape")
        self.image_shape = channels, height, width
        self.classes: list[Scalar] = self.about.labels("classes")
        self.temperature = self.about.number("temperature")
        if self.temperature <= 0:
            self.about.refuse("temperature", "a number above 0", self.temperature)
        self._statistics: Discriminant | None = None
        if LEARNT in stored:
            try:
                self._take(base64.b64decode(stored[LEARNT], validate=True), path)
            except binascii.Error:
                raise DataError(f"{path}: damaged, what it says of its classes is no text in base 64; export it again"
                                ) from None

    @property
    def learns(self) -> bool:
        """Whether classes can be added here."""
        return self._statistics is not None

    # -- predicting ----------------------------------------------------------------------------------------

    def predict(self, pictures: Any) -> list[Scalar]:
        """The name of each picture: an array uint8 (N, C, H, W) of `image_shape`, or paths, or Pillow's pictures."""
        return [self.classes[k] for k in self.scores(pictures).argmax(1)]

    def predict_proba(self, pictures: Any) -> np.ndarray:
        """Probabilities (N, classes) in the order of `classes`; each row sums to 1, by the learner's temperature."""
        scores = self.scores(pictures).astype(np.float64) / self.temperature
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def scores(self, pictures: Any) -> np.ndarray:
        """Scores (N, classes); the largest wins."""
        if self._statistics is not None:  # the graph knows only the classes that it was exported with
            return self._statistics.scores(self.features(pictures))
        return self.run("scores", pictures)

    def features(self, pictures: Any) -> np.ndarray:
        """What the network makes of each picture (N, d), where the graph has that output."""
        return self.run("features", pictures)

    def run(self, output: str, pictures: Any) -> np.ndarray:
        """One output of the graph."""
        x = as_pictures(pictures, self.image_shape)
        # Not every operation of onnxruntime takes no picture at all: then a blank one is passed, and left out again.
        passed = x if len(x) else np.zeros((1, *self.image_shape), np.uint8)
        parts = [np.asarray(self._session.run([output], {"pictures": passed[at : at + AT_ONCE]})[0])
                 for at in range(0, len(passed), AT_ONCE)]
        return np.concatenate(parts)[: len(x)]

    # -- learning ------------------------------------------------------------------------------------------

    def learn(self, pictures: Any, name: Scalar) -> Self:
        """Pictures of one class, a new one or more of a known one. What is stored of the others is not touched."""
        if self._statistics is None:
            raise UserError(f"{self.path}: no class can be added here: {self.about.text('fixed')}")
        if not is_scalar(name):
            raise UserError(f"a class is named by a text, a number, True, False or None; met {shown(name)}")
        z = self.features(pictures)
        if not len(z):
            raise UserError(f"there are no pictures of {shown(name)}; give one or more")
        at = self.classes.index(name) if name in self.classes else len(self.classes)
        self._statistics = self._statistics.learnt(z, at)
        self.classes = [*self.classes[:at], name, *self.classes[at + 1 :]]
        return self

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write what is known of the classes: beside the graph, where `load` finds it, unless a path is given."""
        target = beside(self.path) if path is None else Path(path)
        write_atomic(target, self.learnt())
        return target

    def learnt(self) -> bytes:
        """What `save` writes."""
        if self._statistics is None:
            raise UserError(f"{self.path}: there is nothing to save: {self.about.text('fixed')}")
        about = {"format": CLASSES, "version": __version__, "graph": self.seal, "kind": self._statistics.kind,
                 "classes": self.classes, **self._statistics.settings()}
        return packed(self._statistics.stored, about)

    def take(self, path: str | os.PathLike[str]) -> Self:
        """Go on with what `save` has written."""
        self._take(read_bytes(Path(path), MOST_CLASSES), Path(path))
        return self

    def _take(self, data: bytes, path: Path) -> None:
        dims = {output.name: output.shape[1] for output in self._session.get_outputs()}
        graph, classes, statistics = known(data, path, dims.get("features", 0))
        if graph not in (None, self.seal):
            raise DataError(f"{path}: was learned with another export than {self.path}; use that one, or remove the "
                            "file to begin with the classes of the export")
        self._statistics, self.classes = statistics, classes


def known(data: bytes, path: Path, dim: int) -> tuple[str | None, list[Scalar], Discriminant]:
    """What is known of classes by bytes of any origin: of which graph, their names, and the statistics."""
    arrays, found = unpacked(data, path)
    about = Fields(found, path, "restore the file from a copy, or remove it")
    if about.text("format") != CLASSES or about.text("kind") not in STATISTICS:
        raise DataError(f"{path}: made by another version; use the version that wrote it")
    graph, classes = about.maybe(about.text, "graph", None), about.labels("classes")
    try:
        with np.errstate(all="ignore"):
            return graph, classes, STATISTICS[about.text("kind")].of(arrays, found, len(classes), dim)
    except (KeyError, TypeError, ValueError) as error:
        raise about.refuse("what is known of its classes", "one row a class", str(error)) from None


def beside(path: Path) -> Path:
    """Where what a device has learned lies: signs.onnx, signs.classes."""
    return path.with_suffix(".classes")


def load(path: str | os.PathLike[str], *, threads: int = 0) -> Classifier:
    """The classifier of an exported file, with what it has learned here, if `save` wrote it beside the file.

    `threads` is how many the processor gives to a picture; 0: as many as it has.
    """
    file = Path(path)
    classifier = Classifier(read_bytes(file, MOST_GRAPH), file, threads=threads)
    return classifier.take(beside(file)) if beside(file).exists() else classifier
