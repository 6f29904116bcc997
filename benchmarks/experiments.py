"""The runs behind the tables in docs/: one name a table, resumable, the small result of each run in results/.

    python benchmarks/experiments.py fashion-mnist --data-root DIR [--jobs 2]

A run whose result is in results/ is not run again; one that was interrupted goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from protocore.files import write_json
from protocore.runs.result import result_of

ROOT = Path(__file__).parent.parent

# Each codec at (about) equal bytes: the room of 1/3, 1 and 20 raw pictures a class, for 100 classes, everything that is
# kept counted. In the largest room the codecs may take more bytes a picture.
ROOM = {"1KB": "100KB", "3KB": "310KB", "60KB": "6150KB"}
BALANCED = "er --fill class --draw balanced --current masked"
WEBP, CODES = ("webp:10", "webp:10", "webp:75"), ("vqgan:4", "vqgan:4", "vqgan")
CODECS = {
    f"er-pixels-{size}": f"{BALANCED} --budget {room}" for size, room in ROOM.items() if size != "1KB"
} | {
    f"{name}-{size}-{space}": f"{words} --budget {room} --codec {codec} --replay-space {space}"
    for name, (words, codecs) in {
        "er-webp": (BALANCED, WEBP), "er-codes": (BALANCED, CODES),
        "protocore-coded": ("protocore --exemplars coded", CODES),
        "protocore-synthetic": ("protocore --exemplars synthetic", CODES),
    }.items()
    for (size, room), codec in zip(ROOM.items(), codecs, strict=True)
    for space in ("mix", "raw", "codec")
}

# Where condensation starts, how long it lasts, and what else it may match.
STARTS = {
    f"{start}-{steps}": f"protocore --start {start} --condense-steps {steps}"
    for start in ("nearest", "mean", "random") for steps in (0, 10, 50, 200)
} | {
    f"{start}-50-{name}": f"protocore --start {start} --condense-steps 50 {flags}"
    for start in ("nearest", "mean")
    for name, flags in {"layers": "--match-layers 1", "F": "--condense-perturb", "natural": "--natural 0.1"}.items()
} | {
    "mean-200-layers": "protocore --start mean --condense-steps 200 --match-layers 1",
    "nearest-50-sample": "protocore --start nearest --target sample --condense-steps 50",
    "nearest-50-sample-pixels": "protocore --start nearest --target sample --match-pixels 10 --condense-steps 50",
    "nearest-50-sample-layers": "protocore --start nearest --target sample --match-layers 1 --condense-steps 50",
}

# Every method in the room of 20 pictures a class, or with what it keeps instead.
METHODS = {
    name: name for name in (
        "finetune", "er", "der", "derpp", "icarl", "rm", "ocs", "bcsr", "pbcs", "csrel", "onpro", "cflat", "lwf", "ewc",
        "ldc", "adc", "fecam", "pass", "joint",
    )
} | {
    "protocore": "protocore",
    "protocore-codes": "protocore --codec vqgan:4",
    # Few steps: without labels, stored logits need all outputs, and a weight that does not shrink with their number.
    "der": "der --full-head --distance norm --alpha 0.1",
}
WITHOUT_EXEMPLARS = ("finetune", "lwf", "ewc", "ldc", "adc", "fecam", "pass", "joint")
METHODS = {row: words if row in WITHOUT_EXEMPLARS else f"{words} --spc 20" for row, words in METHODS.items()}

# name of a table -> (benchmark, flags that all its runs share, {row: method and flags}, seeds)
GRIDS: dict[str, tuple[str, str, dict[str, str], tuple[int, ...]]] = {
    "digits": (
        "digits", "",
        {
            "finetune": "finetune",
            "er-20": "er --spc 20",
            "er-1": "er --spc 1",
            "protocore-1": "protocore --spc 1",
            "protocore-5": "protocore --spc 5",
            "joint": "joint",
        },
        (0, 1, 2),
    ),
    "fashion-mnist": (
        "fashion-mnist", "--preset cpu",
        {
            "finetune": "finetune",
            "er-1": "er --spc 1",
            "er-20": "er --spc 20",
            "protocore-1": "protocore --spc 1",
            "protocore-5": "protocore --spc 5",
        },
        (0, 1, 2),
    ),
    "fashion-mnist-choices": (
        "fashion-mnist", "--preset cpu",
        {
            "protocore-1": "protocore --spc 1",
            "protocore-1-random": "protocore --spc 1 --start random",
            "protocore-1-cur-pro-1": "protocore --spc 1 --cur-pro 1",
            "protocore-1-no-prototype-losses": "protocore --spc 1 --cur-pro 0 --pre-pro 0",
        },
        (0,),
    ),
    "imagenet1k-100": (
        "imagenet1k-100", "--tasks 6 --epochs 1 --batch 16 --replay-batch 16", {"er-2": "er --spc 2"}, (0,),
    ),
    "cifar100-10-codecs": (
        "cifar100-10", "--preset cpu --memory-format contiguous",
        CODECS,
        (0, 1, 2),
    ),
    "cifar100-10-starts": (
        "cifar100-10", "--preset cpu --memory-format contiguous --tasks 3 --spc 5 --codec vqgan:4", STARTS, (0,),
    ),
    "cifar100-10": ("cifar100-10", "--preset cpu --memory-format contiguous", METHODS, (0, 1, 2)),
    # The published S-MNIST figures: one pass, each row with the settings that its authors searched for it.
    "mnist": (
        "mnist", "--backbone mlp --full-head --optimizer sgd --epochs 1 --batch 10",
        {
            "finetune": "finetune --lr 0.03",
            "er-200": "er --capacity 200 --lr 0.01 --replay-batch 10",
            "er-500": "er --capacity 500 --lr 0.1 --replay-batch 10",
            "der-200": "der --capacity 200 --lr 0.03 --replay-batch 10 --alpha 0.2",
            "der-500": "der --capacity 500 --lr 0.03 --replay-batch 128 --alpha 1.0",
            "derpp-200": "derpp --capacity 200 --lr 0.03 --replay-batch 128 --alpha 0.2 --beta 1.0",
            "derpp-500": "derpp --capacity 500 --lr 0.03 --replay-batch 10 --alpha 1.0 --beta 0.5",
        },
        (0, 1, 2),
    ),
    "cifar10-er": (
        "cifar10",
        "--backbone resnet18 --width 20 --optimizer sgd --lr 0.1 --batch 32 --replay-batch 32 "
        "--epochs 1",
        {"er-200": "er --capacity 200"},
        (0,),
    ),
}


def run_one(table: str, row: str, command: list[str], seed: int, arguments: argparse.Namespace) -> str:
    """One run in a process of its own, one thread; its small result goes to results/TABLE/."""
    stored = ROOT / "results" / table / f"{row}-s{seed}.json"
    if stored.exists():
        return f"{table} {row} seed {seed}: stored already"
    folder = Path(arguments.runs) / table / f"{row}-s{seed}"
    words = [sys.executable, "-m", "protocore", "run", *command, "--seed", str(seed), "--threads", "1",
             "--out", str(folder), "--json", "--no-figures"]
    if arguments.data_root:
        words += ["--data-root", arguments.data_root]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        return f"{table} {row} seed {seed}: FAILED\n{done.stderr}"
    result = result_of(json.loads(done.stdout), "standard output")
    write_json(stored, result.small())
    return f"{table} {row} seed {seed}: A_T {result.class_incremental.A_T:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=GRIDS)
    parser.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    parser.add_argument("--runs", default="runs/experiments", help="where the run folders go")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows to run, e.g. 'er-webp*'")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="seeds to run (default: the table's)")
    arguments = parser.parse_args()
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [
            pool.submit(run_one, table, row, [method, benchmark, *shared.split(), *flags], seed, arguments)
            for table in arguments.tables
            for benchmark, shared, rows, seeds in [GRIDS[table]]
            for seed in arguments.seeds or seeds
            for row, (method, *flags) in ((row, words.split()) for row, words in rows.items()
                                          if fnmatch(row, arguments.only))
        ]
        for job in jobs:
            line = job.result()
            failed += "FAILED" in line
            print(line, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
