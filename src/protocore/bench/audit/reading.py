"""What an audit looks at: the learner's file, pictures that it has learned, and pictures that it has not."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protocore.config import plural
from protocore.data.images import ChosenImages, Images
from protocore.errors import UserError
from protocore.field.document import PRINT, Document
from protocore.field.photos import decoded
from protocore.field.report import Report
from protocore.field.sources import labelled, without_doubles
from protocore.files import MOST_TENSORS, read_bytes
from protocore.learn.checkpoint import read_checkpoint
from protocore.learn.files import learner_of
from protocore.learn.learner import Learner
from protocore.pictures import ImageShape
from protocore.schema import Fields


@dataclass(frozen=True)
class Subject:
    """A learner and its file; `document` is what `protocore new` and `learn` have noted beside it, if they made it."""

    path: Path
    learner: Learner
    sha256: str
    document: Document | None


@dataclass(frozen=True)
class Pictures:
    """Pictures of the learner's shape, the number of each one's class, and where they came from."""

    images: Images
    labels: Tensor
    files: list[str]
    hashes: list[str]  # sha256 of the files
    notes: list[str] = field(default_factory=list)  # what was left out

    def __len__(self) -> int:
        return len(self.labels)

    def some(self, rows: Tensor, *notes: str) -> Pictures:
        at = rows.tolist()
        return Pictures(ChosenImages(self.images, at), self.labels[rows], [self.files[i] for i in at],
                        [self.hashes[i] for i in at], [*self.notes, *notes])


def subject(path: Path) -> Subject:
    """Any file that `Learner.load` reads."""
    checkpoint = read_checkpoint(path)
    if not checkpoint.header.classes:
        raise UserError(f"{path}: has learned no class, so there is nothing to audit")
    extra = Fields(checkpoint.header.extra, path, "restore the file from a copy", "extra.")
    document = Document.read(extra) if "field" in extra.values else None
    digest = hashlib.sha256(read_bytes(path, MOST_TENSORS)).hexdigest()
    return Subject(path, learner_of(Learner, checkpoint), digest, document)


def pictures(folder: Path, shape: ImageShape, names: list[str], report: Report) -> Pictures:
    """The pictures in a folder of class folders whose names the learner knows, each file once."""
    found = without_doubles(labelled([folder]), {}, lambda done, of: report.progress("looking", done, of))
    known = [i for i, picture in enumerate(found.pictures) if picture.label in names]
    notes = [f"left out: {plural(len(found.skipped), 'file')} that cannot be used or are there twice"] \
        if found.skipped else []
    if strange := len(found.pictures) - len(known):
        notes.append(f"left out: {plural(strange, 'picture')} of classes that the learner does not know")
    if not known:
        raise UserError(f"{folder}: none of its folders has the name of a class of this learner "
                        f"({', '.join(names[:10])}{', …' if len(names) > 10 else ''})")
    files = [found.pictures[i].path for i in known]
    images, bad = decoded(files, [found.hashes[i] for i in known], shape,
                          lambda done, of: report.progress("reading", done, of))
    labels = torch.tensor([names.index(found.pictures[i].label) for i in known])
    short = [(file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix() for file in files]
    made = Pictures(images, labels, short,
                    [found.hashes[i] for i in known], notes)
    if not bad:
        return made
    good = torch.from_numpy(np.setdiff1d(np.arange(len(known)), list(bad)))
    return made.some(good, f"left out: {plural(len(bad), 'picture')} that cannot be read")


def learned_by(document: Document | None, names: list[str], training: Pictures) -> Tensor | None:
    """Which of these pictures the file's fingerprints say were learned; None where it has none."""
    if document is None:
        return None
    prints = [document.classes[name].has() if name in document.classes else set() for name in names]
    return torch.tensor([bytes.fromhex(sha)[:PRINT] in prints[label]
                         for sha, label in zip(training.hashes, training.labels.tolist(), strict=True)])


def without(held_out: Pictures, hashes: Collection[str]) -> Pictures:
    """Held-out pictures that are in no other set."""
    there = set(hashes)
    rows = torch.tensor([i for i, sha in enumerate(held_out.hashes) if sha not in there], dtype=torch.int64)
    twice = len(held_out) - len(rows)
    return held_out.some(rows, f"left out: {plural(twice, 'picture')} that were learned") if twice else held_out
