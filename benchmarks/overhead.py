"""Our training loop's images per second against a bare PyTorch loop of the same network, batch and augmentation.

With `replay` both show the network as many stored pictures as new ones; bfloat16 is left out where the processor has
no units for it. Both train on the same random pictures, in turns, so that whatever else the machine does hits both. The
figure is a ratio: 1 means that the loop costs nothing. Writes results/overhead.json.

    python benchmarks/overhead.py [--rounds 7] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from protocore.backbones import build_network
from protocore.config import Settings
from protocore.data.augment import augmentation
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.runs.configure import configure

SHAPE = (3, 32, 32)
CLASSES = 10
STORED = 20  # exemplars a class where there is replay
_FAST = {"method": "er", "backbone": "fastnet", "spc": STORED}
CASES = {
    "convnet": {"backbone": "convnet"},
    "resnet18 width 20": {"backbone": "resnet18", "width": 20},
    "fastnet, replay": _FAST | {"precision": "float32"},
    "fastnet, replay, bfloat16": _FAST | {"precision": "bfloat16"},
}


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=generator),
            torch.randint(0, CLASSES, (count,), generator=generator))


def bare(net: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, settings: Settings) -> float:
    """What one would write by hand, with nothing around it; seconds of one epoch."""
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    augment = augmentation("crop4,flip")
    stored = torch.randperm(len(images))[: CLASSES * STORED] if settings.spc else None
    net.train()
    start = time.perf_counter()
    for rows in torch.randperm(len(images)).split(settings.batch):
        if stored is not None:
            rows = torch.cat([rows, stored[torch.randint(0, len(stored), (settings.replay_batch,))]])
        x = augment(images[rows]).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bfloat16"):
            loss = F.cross_entropy(net(x), labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start


def ours(learner: Learner, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Seconds of one epoch of `learn`, opening and closing the task included."""
    task = Task.from_arrays(images, labels)
    start = time.perf_counter()
    learner.learn(task)
    return time.perf_counter() - start


def compare(case: dict[str, object], images: torch.Tensor, labels: torch.Tensor, rounds: int,
            threads: int) -> dict[str, object]:
    config = configure({"method": "finetune", "benchmark": "cifar10", "epochs": 1, "batch": 64, "replay_batch": 64,
                        "threads": threads, **case})
    learner = Learner.of(config, SHAPE)
    s = config.settings
    net = build_network(s.backbone, SHAPE, width=s.width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net.grow(CLASSES)
    for _ in range(2):  # warm up; from the second epoch on there is a memory
        bare(net, images, labels, s), ours(learner, images, labels)
    times = [(bare(net, images, labels, s), ours(learner, images, labels)) for _ in range(rounds)]
    ratios = sorted(b / o for b, o in times)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(r, 3) for r in ratios],
        "bare_images_per_second": round(len(images) / statistics.median(b for b, _ in times)),
        "our_images_per_second": round(len(images) / statistics.median(o for _, o in times)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=960)
    arguments = parser.parse_args()
    images, labels = pictures(arguments.images)
    report: dict[str, object] = {
        "command": "python benchmarks/overhead.py", "threads": arguments.threads, "torch": torch.__version__
    }
    for name, case in CASES.items():
        try:
            report[name] = compare(case, images, labels, arguments.rounds, arguments.threads)
        except UserError as error:  # no units for bfloat16
            print(f"{name}: {error}")
            continue
        print(name, report[name])
    path = Path(__file__).parent.parent / "results" / "overhead.json"
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
