"""A learner's life as `benchmarks/months.py` measures it, on the embedded digits behind a network that knows digits."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from protocore.learn.learner import Learner

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location(f"document_{name}", BENCHMARKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of 20 + 10 pictures a digit, and a network that has seen other pictures of them."""
    folder, data = tmp_path_factory.mktemp("digits"), load_digits()
    pictures, used = (data.images * 15.9).astype(np.uint8), np.zeros(len(data.target), bool)
    for digit in range(10):
        for k, row in enumerate(np.flatnonzero(data.target == digit)[:30]):
            path = folder / ("train" if k < 20 else "test") / f"digit {digit}" / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pictures[row]).save(path)
            used[row] = True
    teacher = Learner("finetune", (3, 8, 8), backbone="mlp", epochs=15, batch=32, augment="none", threads=1)
    teacher.partial_fit(np.repeat(pictures[~used, None], 3, 1), data.target[~used])
    teacher.save(folder / "teacher.learner")
    return folder, folder / "teacher.learner"


@pytest.mark.parametrize("method", ["ncm", "slda"])
def test_a_class_that_comes_later_costs_the_older_ones_less_than_two_points(
        digits: tuple[Path, Path], tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, weights = digits
    months = loaded("months", monkeypatch)
    settings = {"weights": str(weights), "freeze": "all", "image_size": 8, "budget": "8KB", "threads": 1,
                "method": method}
    found = months.life(tmp_path, months.files_of(folder / "train"), months.files_of(folder / "test"), 1, settings,
                        sessions=1)
    lost = [one["before"] - one["after"] for one in found["added"]]
    assert [one["classes"] for one in found["added"]] == [5, 6, 7, 8, 9]
    assert statistics.mean(lost) < 2
    assert max(lost) < 7, "three of the 50 pictures that are asked"
    assert all(one["untouched"] for one in found["added"])
    assert min(one["new"] for one in found["added"]) >= 70
    assert [one["classes"] for one in found["sure"]] == [5, 10]
    assert found["sure"][1]["accuracy"] > 85
    assert found["sure"][1]["error"] < 12
    (few,) = found["unknown"]
    assert (few["classes"], few["strangers"], few["measure"], few["held_out"]) == (5, 5, "nearness", 25)
    assert set(few["rates"]) == {"0.05", "0.1"}, "what 25 held-out pictures can promise"
    assert few["rates"]["0.1"]["refused"] <= 30
    assert few["rates"]["0.1"]["caught"] > 2 * few["rates"]["0.1"]["refused"]
    assert list(tmp_path.glob("*.learner")) == []


def test_what_is_touched_and_what_is_sorted_right(monkeypatch: pytest.MonkeyPatch) -> None:
    months = loaded("months", monkeypatch)
    old, new = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[1, 2], [4, 5], [7, 8]])
    assert months.untouched({"prototypes/features": old}, {"prototypes/features": new})
    new[1, 1] = 6
    assert not months.untouched({"prototypes/features": old}, {"prototypes/features": new})
    assert months.sorted_right(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])) == (1 + 0.5 + 1 + 1) / 4


def test_the_tables_say_what_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = loaded("tables", monkeypatch)
    monkeypatch.setattr(tables, "ROOT", tmp_path)

    def life(seed: int, after: float, caught: float, rates: tuple[str, ...]) -> dict[str, Any]:
        return {"method": "ncm", "seed": seed, "sure": [{"classes": 5, "accuracy": 90, "sure": 88, "error": 2 + seed}],
                "added": [{"classes": 5, "before": 96, "after": after, "new": 80, "untouched": seed == 1}],
                "unknown": [{"classes": 5, "strangers": 3,
                             "rates": {rate: {"refused": 4, "caught": caught} for rate in rates},
                             "sorted": {"nearness": 95, "score": 94, "probability": 90}}]}

    (tmp_path / "results").mkdir()
    lives = [life(1, 95.0, 60, ("0.05", "0.1")), life(2, 94.5, 80, ("0.1",))]
    (tmp_path / "results" / "months.json").write_text(json.dumps({"lives": lives}))

    def rows(table: str) -> list[dict[str, str]]:
        titles, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        return [dict(zip(titles, line, strict=True)) for line in lines]

    (cost,) = rows(tables.months_cost_table())
    assert (cost["lost by one addition, points"], cost["the most"]) == ("1.25", "1.5")
    assert (cost["older means as they were"], cost["the added class"]) == ("1 of 2", "80.0 %")
    (sure,) = rows(tables.months_sure_table())
    assert sure["calibration error, points"] == "3.5 ± 0.7"
    few, more = rows(tables.months_unknown_table())
    assert (few["`--unknown`"], few["strangers caught"]) == ("0.05", "60.0 %")
    assert (more["`--unknown`"], more["strangers caught"]) == ("0.1", "70.0 ± 14.1 %")
    (measure,) = rows(tables.months_measures_table())
    assert measure["cosine to the nearest mean"] == "95.0 ± 0.0 %"
