"""How good and how private exemplars are: the means of `protocore health` for some finished runs, side by side.

    python benchmarks/health.py RUN_FOLDER ... --data-root DIR

A folder that has its health.json already is not looked at again. Writes results/health.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from protocore.bench.health import health


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    arguments = parser.parse_args()
    rows = []
    for folder in arguments.runs:
        stored = folder / "health.json"
        report = json.loads(stored.read_text()) if stored.exists() else health(folder, data_root=arguments.data_root)
        rows.append({k: v for k, v in report.items() if k != "classes"})
    path = Path(__file__).parent.parent / "results" / "health.json"
    path.write_text(json.dumps({"runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
