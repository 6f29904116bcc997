"""A learner that lives for months: what a class costs the older ones, how sure it is, what it takes for unknown.

Each life begins with sessions of five classes; then classes come one by one, each to a learner that is opened anew from
its file. Asked are pictures that were never learned; strangers are pictures of classes that have not come yet.
Writes results/months.json.

    python benchmarks/months.py photos        # a folder with train/ and test/ of class folders
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protocore.errors import UserError
from protocore.field.asking import evidence_of
from protocore.field.keeper import Keeper
from protocore.field.photos import decoded
from protocore.learn.calibration import calibration_error, threshold_for
from protocore.learn.learner import Learner

METHODS, SEEDS = ("ncm", "slda"), (1, 2, 3)
SESSION, SESSIONS = 5, 6  # classes at a time, and how often, before they come one by one
RATES = (0.01, 0.05, 0.1)
LEARNER = {"backbone": "efficientnet-lite0", "budget": "64KB", "threads": 1}
Files = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Asked:
    """Test pictures as a learner's frozen network gives them, and what they show."""

    x: Tensor
    shown: np.ndarray

    @classmethod
    def by(cls, learner: Learner, files: Files) -> Asked:
        images, bad = decoded([path for paths in files.values() for path in paths], None, learner.image_shape,
                              lambda done, of: None)
        assert not bad
        shown = np.array([name for name, paths in files.items() for _ in paths])
        return cls(learner.ready(torch.from_numpy(images.take(np.arange(len(shown))))), shown)

    def told(self, keeper: Keeper) -> Told:
        """What the learner in the file says of them now."""
        learner = keeper.learner
        scores = learner.scores(self.x, ready=True)
        return Told(keeper, scores.double(), learner.method.nearness(learner.machine.images(self.x)),
                    np.array(learner.class_names), self.shown)


@dataclass(frozen=True)
class Told:
    """Scores of all test pictures at one time of a learner's life."""

    keeper: Keeper
    scores: Tensor
    nearness: Tensor | None
    names: np.ndarray
    shown: np.ndarray

    @property
    def known(self) -> np.ndarray:
        return np.isin(self.shown, self.names)

    def right(self, classes: Sequence[str]) -> float:
        """Per cent, of the pictures of these classes."""
        rows = np.isin(self.shown, classes)
        return 100 * float((self.names[self.scores.argmax(1).numpy()] == self.shown)[rows].mean())

    def sure(self) -> dict[str, float]:
        chances = (self.scores[self.known] / self.keeper.learner.temperature).softmax(1)
        sure, said = chances.max(1)
        right = torch.from_numpy(self.names[said.numpy()] == self.shown[self.known])
        return {"classes": len(self.names), "accuracy": 100 * float(right.double().mean()),
                "sure": 100 * float(sure.mean()), "error": 100 * calibration_error(sure, right)}

    def unknown(self) -> dict[str, Any]:
        """Of each rate that can be promised what is refused and caught; and how well each measure sorts, whatever the
        threshold: how often a known picture looks more familiar than a strange one."""
        calibration = self.keeper.document.calibration
        evidence, found = evidence_of(calibration.measure, self.scores, self.nearness), dict[str, Any]()
        for rate in RATES:
            try:
                low = (evidence < threshold_for(calibration.best, rate)).numpy()
            except UserError:  # too few pictures were held out for such a promise
                continue
            found[f"{rate:g}"] = {"refused": 100 * float(low[self.known].mean()),
                                    "caught": 100 * float(low[~self.known].mean())}
        chances = (self.scores / self.keeper.learner.temperature).softmax(1).amax(1)
        measures = {"score": self.scores.amax(1), "probability": chances}
        measures |= {} if self.nearness is None else {"nearness": self.nearness}
        return {"classes": len(self.names), "strangers": len({*self.shown[~self.known]}),
                "measure": calibration.measure, "held_out": len(calibration.best), "rates": found,
                "sorted": {name: 100 * sorted_right(v[self.known], v[~self.known]) for name, v in measures.items()}}


def sorted_right(known: Tensor, strange: Tensor) -> float:
    """How often one of the first is larger than one of the second; ties count half."""
    gap = known[:, None] - strange
    return float(((gap > 0).double() + (gap == 0).double() / 2).mean())


def untouched(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> bool:
    """Whether the means that were there are as they were, in the numbers that the room still has for them."""
    old, new = (memory["prototypes/features"] for memory in (before, after))
    return torch.equal(old[:, : new.shape[1]], new[: len(old)])


def life(folder: Path, train: Files, test: Files, seed: int, settings: Mapping[str, Any], sessions: int = SESSIONS,
         size: int = SESSION) -> dict[str, Any]:
    """A learner from its first class to its last."""
    names = [str(name) for name in np.random.default_rng(seed).permutation(sorted(train))]
    first = sessions * size
    parts = [names[at : at + size] for at in range(0, first, size)] + [[name] for name in names[first:]]
    path, table = folder / "mine.learner", folder / "session.csv"
    Keeper.new(path, **settings)
    asked, before, sure, unknown, added = None, None, [], [], []
    for part in parts:
        table.write_text("file,label\n" + "".join(f'"{file}","{name}"\n' for name in part for file in train[name]))
        Keeper(path).learn([table])
        keeper = Keeper(path)
        asked = asked or Asked.by(keeper.learner, test)
        told, memory = asked.told(keeper), keeper.learner.memory()
        come = len(told.names)
        if come in (size, first, len(names)):
            sure.append(told.sure())
            unknown += [told.unknown()] if come < len(names) else []
        if before and come > first:
            older = list(before[0].names)
            added.append({"classes": len(older), "before": before[0].right(older), "after": told.right(older),
                          "new": told.right(part), "untouched": untouched(before[1], memory)})
        before = told, memory
    path.unlink()
    return {"method": settings["method"], "seed": seed, "added": added, "sure": sure, "unknown": unknown}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(float(value), 3) if isinstance(value, float) else value


def files_of(folder: Path) -> Files:
    return {each.name: sorted(each.iterdir()) for each in sorted(folder.iterdir())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    photos = parser.parse_args().photos.resolve()
    train, test = files_of(photos / "train"), files_of(photos / "test")
    lives = []
    for method in METHODS:
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                lives.append(rounded(life(Path(folder), train, test, seed, {**LEARNER, "method": method})))
            print(json.dumps(lives[-1]), flush=True)
    report = {"command": "python benchmarks/months.py photos", "torch": torch.__version__, "settings": LEARNER,
              "classes": len(train), "session": SESSION, "sessions": SESSIONS,
              "test_pictures": sum(map(len, test.values())), "lives": lives}
    path = Path(__file__).parent.parent / "results" / "months.json"
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
