"""What is left of a class that was forgotten, with and without unlearning, beside a learner that never learned it.

Six of the embedded digits, 40 pictures of each, two at a time, learned by heart; then one of them is forgotten.
Writes results/forgetting.json.

    python benchmarks/forgetting.py [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from protocore.learn.learner import Learner
from protocore.learn.membership import evidence, membership

METHODS = ("er", "derpp", "icarl", "protocore")
STEPS = (0, 10, 30, 100, 300)
CASES = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))  # seed, and the class that is forgotten
LEARNED = 40  # pictures of each class
SETTINGS = {"backbone": "mlp", "width": 64, "spc": 20, "epochs": 60, "lr": 0.003, "batch": 32, "replay_batch": 32}


class Data:
    """Pictures, their classes, and which of them are learned."""

    def __init__(self) -> None:
        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        order = order[data.target[order] < 6]
        self.images, self.labels = (data.images * 15.9).astype(np.uint8)[order, None], data.target[order]
        self.learned = np.zeros(len(order), bool)
        for c in range(6):
            self.learned[np.flatnonzero(self.labels == c)[:LEARNED]] = True

    def teach(self, method: str, seed: int, threads: int, leave_out: int | None = None) -> Learner:
        mine = Learner(method, (1, 8, 8), seed=seed, threads=threads, **SETTINGS)  # type: ignore[arg-type]
        for classes in ((0, 1), (2, 3), (4, 5)):
            rows = self.learned & np.isin(self.labels, classes) & (self.labels != leave_out)
            mine.partial_fit(self.images[rows], self.labels[rows])
        return mine

    def measured(self, mine: Learner, gone: int) -> dict[str, float]:
        own, unseen = (self.images[side & (self.labels == gone)] for side in (self.learned, ~self.learned))
        others = ~self.learned & (self.labels != gone)
        found = membership(evidence(mine.scores(own)), evidence(mine.scores(unseen)))
        assert found is not None
        return {"others": 100 * mine.score(self.images[others], self.labels[others]), "auc": found.auc,
                "chance": found.chance, "sure": float(mine.predict_proba(unseen).max(1).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    data, rows = Data(), []
    path = Path(__file__).parent.parent / "results" / "forgetting.json"
    for method in METHODS:
        found: dict[str, list[dict[str, float]]] = {}
        for seed, gone in CASES:
            taught = path.with_name(".forgetting.learner")
            mine = data.teach(method, seed, threads)
            found.setdefault("before", []).append(data.measured(mine, gone))
            mine.save(taught)
            for steps in STEPS:
                mine = Learner.load(taught)
                mine.forget(gone, data.images[data.learned & (data.labels == gone)], unlearn_steps=steps)
                found.setdefault(f"{steps}", []).append(data.measured(mine, gone))
            taught.unlink()
            never = data.teach(method, seed, threads, leave_out=gone)
            found.setdefault("never", []).append(data.measured(never, gone))
        for when, values in found.items():
            rows.append({"method": method, "when": when, **{
                key: round(statistics.mean(v[key] for v in values), 4) for key in values[0]}})
            print(rows[-1], flush=True)
    path.write_text(json.dumps({"cases": len(CASES), "settings": SETTINGS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
