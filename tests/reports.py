"""Runs for reports: a small real one with exemplars and records, and results made of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from protocore.runs.configure import configure
from protocore.runs.job import run

HOSTILE = "</title></script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&"
R = [[90.0], [70.0, 92.0], [60.0, 80.0, 94.0], [65.0, 70.0, 85.0, 96.0], [50.0, 55.0, 60.0, 80.0, 95.0]]


def real_run(folder: Path, **flags: Any) -> Path:
    """A run on the embedded digits that takes a second or two."""
    flags = {"method": "protocore", "benchmark": "digits", "spc": 3, "codec": "vqgan:4", "epochs": 1,
             "images_per_class": 20, "threads": 1, "exemplars": "synthetic", "record": True, **flags}
    run(configure(flags), folder)
    return folder


def document(source: Path, **changes: Any) -> dict[str, Any]:
    """The result of a run as JSON, with other settings and accuracies: `A_T` shifts the whole matrix."""
    made = copy.deepcopy(json.loads((source / "result.json").read_text()))
    shift = changes.pop("A_T", 73.0) - 68.0
    for part in ("class_incremental", "task_incremental"):
        made[part]["R"] = [[min(max(v + shift, 0.0), 100.0) for v in row] for row in R]
        made[part]["A_T"] = sum(made[part]["R"][-1]) / 5
    size = changes.pop("bytes", None)
    if size is not None:
        made["ledger"] = [{"name": "exemplars/bytes", "bytes": size, "rows": 9, "shared": False, "kind": "exemplars",
                           "origin": "real"},
                          {"name": "exemplars/labels", "bytes": 0, "rows": 9, "shared": False, "kind": "exemplars",
                           "origin": "real"}]
    for name, value in changes.items():
        made["settings"][name] = value
        made["sources"][name] = "flag"
    made["per_class"] = []
    return made


def write(folder: Path, name: str, made: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(made))
    return path


def several(folder: Path, source: Path) -> Path:
    """Stored results: two memories in two sizes, three seeds each, and both bounds."""
    for seed in range(3):
        for method, budget, size, score in (("er", 2000, 1900, 50.0), ("er", 20000, 19000, 62.0),
                                            ("derpp", 2000, 1950, 56.0), ("derpp", 20000, 19500, 61.5)):
            made = document(source, method=method, budget=budget, spc=None, seed=seed, codec="pixels", bytes=size,
                            A_T=score + seed)
            write(folder, f"{method}-{budget}-s{seed}", made)
    nothing = document(source, method="finetune", spc=None, codec="pixels", A_T=20.0)
    nothing["ledger"] = [{"name": "file header", "bytes": 16, "rows": 1, "shared": False, "kind": "header",
                          "origin": None}]
    write(folder, "finetune-s0", nothing)
    everything = copy.deepcopy(nothing)
    everything["settings"]["method"] = "joint"
    for part in ("class_incremental", "task_incremental"):
        everything[part] = {"R": [[97.0, 98.0, 99.0, 96.0, 95.0]], "A_T": 97.0}
    write(folder, "joint-s0", everything)
    return folder
