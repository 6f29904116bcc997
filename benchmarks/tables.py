"""Write the tables of README.md and docs/ and their figures from the stored results.

    python benchmarks/tables.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from protocore.bench import figures
from protocore.bench.tables import markdown_table, mean_std, replace_block
from protocore.config import format_bytes

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/results.md")


def stored(table: str) -> dict[str, list[dict[str, Any]]]:
    """Results of a table by row, the seeds of each row together."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((ROOT / "results" / table).glob("*.json")):
        rows[path.stem.rpartition("-s")[0]].append(json.loads(path.read_text()))
    return rows


def command(result: dict[str, Any]) -> str:
    """The command without what differs between the seeds of a row."""
    words, kept = result["command"].split(), []
    while words:
        word = words.pop(0)
        if word in ("--seed", "--threads"):
            words.pop(0)
        else:
            kept.append(word)
    return " ".join(kept)


def runs_table(table: str) -> str:
    rows = []
    for results in stored(table).values():
        def over_seeds(part: str, key: str, results: list[dict[str, Any]] = results) -> str:
            values = [r[part][key] for r in results]
            return "–" if None in values else mean_std(values)

        seconds = [r["seconds"]["learn"] for r in results]
        condense = [r["seconds"].get("condense", 0.0) for r in results]
        rows.append({
            "command": f"`{command(results[0])}`",
            "A_T": over_seeds("class_incremental", "A_T"),
            "A_L": over_seeds("class_incremental", "A_L"),
            "Ā": over_seeds("class_incremental", "A_mean"),
            "forgetting": over_seeds("class_incremental", "forgetting"),
            "task-inc. A_T": over_seeds("task_incremental", "A_T"),
            "kept": format_bytes(results[0]["bytes_kept"]),
            "learn s": f"{sum(seconds) / len(seconds):.0f}",
            "condense s": f"{sum(condense) / len(condense):.0f}" if any(condense) else "–",
            "seeds": str(len(results)),
        })
    return markdown_table(rows)


def overhead_table() -> str:
    report = json.loads((ROOT / "results" / "overhead.json").read_text())
    return markdown_table([
        {"network": name, "ratio": f"{case['ratio']:.3f}", "bare, images/s": str(case["bare_images_per_second"]),
         "ours, images/s": str(case["our_images_per_second"])}
        for name, case in report.items() if isinstance(case, dict)
    ])


def memory_table(table: str) -> str:
    """The process's memory after each task: flat, whatever the size of the data set."""
    rows = []
    for (result, *_) in stored(table).values():
        after = [format_bytes(size) for size in result["resident_after_each_task"]]
        rows.append({"command": f"`{command(result)}`"} | {f"task {i + 1}": size for i, size in enumerate(after)}
                    | {"peak": format_bytes(result["peak_memory_bytes"])})
    return markdown_table(rows)


def main() -> None:
    blocks = {p.name: runs_table(p.name) for p in sorted((ROOT / "results").iterdir()) if p.is_dir()}
    blocks["overhead"] = overhead_table()
    blocks["imagenet-memory"] = memory_table("imagenet1k-100")
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        for name, block in blocks.items():
            if f"<!-- table: {name} -->" in text:
                text = replace_block(text, name, block)
        path.write_text(text)
    pictures = ROOT / "docs" / "img"
    pictures.mkdir(exist_ok=True)
    seeds_0 = [results[0] for results in stored("fashion-mnist").values()]
    figures.bytes_figure(seeds_0, pictures / "fashion-mnist-bytes.png")
    figures.accuracy_curves(seeds_0, pictures / "fashion-mnist-accuracy.png")


if __name__ == "__main__":
    main()
