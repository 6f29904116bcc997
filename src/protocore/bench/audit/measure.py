"""What is measured: how near the exemplars are to pictures that were learned, and whether scores give those away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.bench.audit.kept import Part, parts_of
from protocore.bench.audit.reading import Pictures, Subject, learned_by, pictures, subject, without
from protocore.bench.health import nearest, nearest_rows
from protocore.config import plural
from protocore.data.augment import to_float
from protocore.data.images import blocks_of
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.field.document import now
from protocore.field.report import Report
from protocore.learn.learner import Learner
from protocore.learn.membership import Membership, evidence, membership
from protocore.memory.store import ExemplarStore
from protocore.version import __version__

BETWEEN = 400  # training pictures, evenly over all, whose own nearest neighbours are looked for
NEAR = 0.05  # share of them that are nearer to another one than what is called near


@dataclass(frozen=True)
class Exemplar:
    """One that is kept, and the training pictures that are nearest to it."""

    store: str
    origin: str
    name: str  # of its class
    slot: int
    distance: float | None  # root mean square over pixels in [0, 1]; None: it is no picture
    picture: str | None  # the file that is nearest in pixels
    alike: float  # cosine of the features with those of the picture whose features are nearest: 1 is the same
    picture_by_features: str


@dataclass(frozen=True)
class OfClass:
    """One class: how near its exemplars come, and how well a membership attack works on its pictures."""

    name: str
    exemplars: int
    training: int
    held_out: int
    copies: int  # exemplars that are a training picture, to the last bit
    closest: float | None
    mean: float | None
    attack: Membership | None


@dataclass(frozen=True)
class Audit:
    """Everything that the page says."""

    file: str
    sha256: str
    when: str
    version: str
    method: str
    codec: str
    training: int
    held_out: int
    fingerprints: int | None  # training pictures whose fingerprint is in the file; None: it keeps none
    parts: Sequence[Part]
    exemplars: Sequence[Exemplar]
    between: float | None  # median distance of a training picture to the nearest other one
    near: float | None  # the distance below which NEAR of them are
    by_loss: Membership | None  # an attacker who knows the class that the picture was learned as
    by_confidence: Membership | None  # one who does not
    classes: Sequence[OfClass]
    notes: Sequence[str]

    @property
    def worst(self) -> OfClass | None:
        """The class whose pictures are given away most."""
        told = [one for one in self.classes if one.attack is not None]
        return max(told, key=lambda one: abs(one.attack.auc - 0.5) if one.attack else 0.0, default=None)

    def to_json(self) -> dict[str, Any]:
        worst = self.worst
        return {**asdict(self), "worst_class": None if worst is None else worst.name}


@dataclass(frozen=True)
class Seen:
    """Pictures as the learner sees them."""

    scores: Tensor
    features: Tensor  # of length 1


@torch.no_grad()
def audit(path: Path, training: Path, held_out: Path | None = None, report: Report | None = None
          ) -> tuple[Audit, Subject, Pictures]:
    """The audit of a learner's file against folders of pictures; and what it was made of, for a page to show."""
    report = report or Report()
    about = subject(path)
    learner = about.learner
    names, shape = learner.class_names, learner.image_shape
    learned = pictures(training, shape, names, report)
    known = learned_by(about.document, names, learned)
    if known is not None and not bool(known.any()):
        raise UserError(f"{training}: none of its pictures was learned by {path}, as its fingerprints say; give the "
                        "folder that it learned from")
    if known is not None and not bool(known.all()):
        few = f"left out: {plural(int((~known).sum()), 'picture')} that this learner has not learned, as its " \
            "fingerprints say"
        learned = learned.some(known.nonzero().flatten(), few)
    others = None if held_out is None else without(pictures(held_out, shape, names, report), learned.hashes)
    if others is not None and not len(others):
        raise UserError(f"{held_out}: all of its pictures were learned; give others")
    seen = look(learner, learned, report, "looking at the training pictures")
    exemplars, between, near = compared(learner, learned, seen.features, report)
    strange = None if others is None else look(learner, others, report, "looking at the held-out pictures")
    by_loss = by_confidence = None
    classes = []
    for label, name in enumerate(names):
        mine = [e for e in exemplars if e.name == name]
        at, apart = learned.labels == label, None if others is None else others.labels == label
        attack = None if strange is None or others is None or apart is None else membership(
            evidence(seen.scores[at], learned.labels[at]), evidence(strange.scores[apart], others.labels[apart]),
            tests=len(names))
        far = [e.distance for e in mine if e.distance is not None]
        classes.append(OfClass(name, len(mine), int(at.sum()), 0 if apart is None else int(apart.sum()), far.count(0.0),
                               min(far, default=None), sum(far) / len(far) if far else None, attack))
    if strange is not None and others is not None:
        by_loss = membership(evidence(seen.scores, learned.labels), evidence(strange.scores, others.labels))
        by_confidence = membership(evidence(seen.scores), evidence(strange.scores))
    return Audit(
        path.name, about.sha256, now(), __version__, learner.settings.method, learner.tools.codec.spec, len(learned),
        0 if others is None else len(others), None if known is None else int(known.sum()), parts_of(about), exemplars,
        between, near, by_loss, by_confidence, classes,
        [*learned.notes, *([f"held out: {note}" for note in others.notes] if others is not None else [])],
    ), about, learned


def look(learner: Learner, pictures: Pictures, report: Report, what: str) -> Seen:
    """Scores and features of all pictures, some at a time."""
    scores, features = [], []
    for rows in blocks_of(pictures.images):
        x = learner.ready(torch.from_numpy(pictures.images.take(rows)))
        scores.append(learner.scores(x, ready=True))
        features.append(features_of(learner, x))
        report.progress(what, int(rows[-1]) + 1, len(pictures))
    return Seen(torch.cat(scores), torch.cat(features))


def features_of(learner: Learner, images: Tensor) -> Tensor:
    """Features of length 1 of what the network meets."""
    learner.net.eval()
    parts = [learner.net.features(learner.machine.images(to_float(part))).float().cpu()
             for part in images.split(learner.net.at_once())]
    return F.normalize(torch.cat(parts), dim=1) if parts else torch.empty(0, learner.net.dim)


def compared(learner: Learner, learned: Pictures, features: Tensor, report: Report
             ) -> tuple[list[Exemplar], float | None, float | None]:
    """Every exemplar with the training pictures nearest to it; how near training pictures are to each other."""
    stores = [store for store in learner.method.stores() if len(store)]
    if not stores:
        return [], None, None
    task = Task(learned.images, learned.labels.numpy())
    rows, found = torch.arange(len(learned)), list[Exemplar]()
    are_pictures = learner.net.image_shape == learner.image_shape
    some = torch.linspace(0, len(learned) - 1, min(BETWEEN, len(learned))).long()
    between = near = None
    if are_pictures and len(learned) > 1:
        apart, _ = nearest(task.take(some), task, rows, some)
        between, near = (float(apart.double().quantile(q)) for q in (0.5, NEAR))
    for store in stores:
        report.progress(f"looking for the originals of {store.name}", 0, len(store))
        far, where = pixels(store, task, rows) if are_pictures else (None, None)
        alike, which = most_alike(features_of(learner, store.images), features)
        for slot, label in enumerate(store.labels.tolist()):
            found.append(Exemplar(
                store.name, str(store.origin), learner.class_names[label], slot,
                None if far is None else float(far[slot]), None if where is None else learned.files[int(where[slot])],
                float(alike[slot]), learned.files[int(which[slot])]))
        report.progress(f"looking for the originals of {store.name}", len(store), len(store))
    return found, between, near


def pixels(store: ExemplarStore, task: Task, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of each exemplar to the nearest training picture, whatever its class, and the row of that."""
    where = nearest_rows(store.images, task, rows, torch.full((len(store),), -1))
    # The search is quick and rough: a copy must come out at 0.
    far = [(to_float(mine) - to_float(task.take(theirs))).square().flatten(1).mean(1).sqrt()
           for mine, theirs in zip(store.images.split(256), where.split(256), strict=True)]
    return torch.cat(far), where


def most_alike(queries: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """The largest cosine of each query with features of length 1, and the row of those."""
    found = [(part @ features.T).max(1) for part in queries.split(1024)]
    return torch.cat([values for values, _ in found]).clamp(-1, 1), torch.cat([at for _, at in found])
