"""What of the fast recipe pays, each change by itself.

    python benchmarks/recipe.py --data-root DIR [--only 'sgd*'] [--seeds 11]

Fine-tuning on the first task of split CIFAR-100 with preset `fast`, measured on the last fifth of its training
pictures, in a class order that no table uses; seconds of processor time. Results that are there already stay, so that a
run that was interrupted goes on. Writes results/recipe.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from protocore.backbones import fastnet
from protocore.data import augment
from protocore.data.benchmarks import open_stream
from protocore.files import write_atomic
from protocore.learn import learner as learners
from protocore.learn.evaluate import evaluate
from protocore.learn.learner import Learner
from protocore.methods.finetune import Finetune
from protocore.runs.configure import configure
from protocore.runs.job import learner_for

EPOCH = 4000  # pictures
SLOWEST = "ResNet-18, width 64, Adam 0.001"
FLAGS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "Muon, rate 0.05": {"optimizer": "muon", "lr": 0.05},
    "Muon, rate 0.1": {"optimizer": "muon", "lr": 0.1},
    "SGD with momentum 0.9, rate 0.02": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.02},
    "SGD with momentum 0.9, rate 0.1": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1},
    "Adam, rate 0.001": {"optimizer": "adam", "lr": 1e-3},
    "Adam, rate 0.004": {"optimizer": "adam", "lr": 4e-3},
    "cosine schedule": {"schedule": "cosine"},
    "constant rate": {"schedule": "constant"},
    "label smoothing 0.2": {"label_smoothing": 0.2},
    "batches of 128, rate 0.003": {"batch": 128, "lr": 3e-3},
    "group norm": {"norm": "group"},
    "width 48": {"width": 48},
    "shifts by 2": {"augment": "crop2,flip"},
    "random resized crops": {"augment": "rrc,flip"},
    "no mirror image at prediction": {"mirror": False},
    "float32": {"precision": "float32"},
    "contiguous memory format": {"memory_format": "contiguous"},
    "ConvNet": {"backbone": "convnet"},
    "ResNet-18, width 20, Adam 0.001": {"backbone": "resnet18", "width": 20, "optimizer": "adam", "lr": 1e-3},
    SLOWEST: {"backbone": "resnet18", "width": 64, "optimizer": "adam", "lr": 1e-3},
}


@contextmanager
def own_stem() -> Iterator[None]:
    """The stem starts as torch draws it, and learns."""
    made = fastnet.FastNet.__init__

    def learning(self: fastnet.FastNet, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.stem.weight.requires_grad_(True)

    with mock.patch.object(fastnet.FastNet, "__init__", learning), mock.patch.object(
            fastnet.FastNet, "prepare", return_value=None):
        yield


@contextmanager
def no_identity() -> Iterator[None]:
    with mock.patch.object(nn.init, "dirac_", lambda weight: weight):
        yield


@contextmanager
def fixed_scale() -> Iterator[None]:
    """Batch norm shifts and does not scale."""
    def plain(norm: str, channels: int) -> nn.Module:
        made = nn.BatchNorm2d(channels)
        made.weight.requires_grad_(False)
        return made

    with mock.patch.object(fastnet, "norm_layer", plain):
        yield


@contextmanager
def fast_biases() -> Iterator[None]:
    """Biases (norms' shifts among them) learn at 64 times the rate of the others."""
    class Biased(torch.optim.Adam):
        def __init__(self, parameters: Any, **settings: Any) -> None:
            parameters = list(parameters)
            vectors, others = ([p for p in parameters if (p.ndim == 1) == flat] for flat in (True, False))
            super().__init__([{"params": others, "share": 1.0}, {"params": vectors, "share": 64.0}], **settings)

    with mock.patch("torch.optim.Adam", Biased):
        yield


@contextmanager
def moving_average() -> Iterator[None]:
    """What predicts is a moving average of the weights over about a hundred steps."""
    mean: dict[int, dict[str, torch.Tensor]] = {}

    def after(self: Finetune, batch: Any) -> None:
        now = self.net.state_dict()
        held = mean.setdefault(id(self), copy.deepcopy(now))
        for name, value in held.items():
            if value.is_floating_point():
                value.lerp_(now[name], 0.01)

    def end(self: Finetune, task: Any) -> None:
        self.net.load_state_dict(mean.pop(id(self)))

    with mock.patch.object(Finetune, "after_step", after), mock.patch.object(Finetune, "end_task", end):
        yield


@contextmanager
def alternating_flips() -> Iterator[None]:
    """A picture is mirrored in every second epoch, where it begins being drawn."""
    shown = {"pictures": 0}

    def by_content(images: torch.Tensor) -> torch.Tensor:
        shown["pictures"] += len(images)
        middle = images[:, :, 12:20, 12:20].flatten(1).sum(1)  # tells pictures apart
        odd = middle + shown["pictures"] // EPOCH
        return torch.where((odd % 2 == 0).view(-1, 1, 1, 1), images.flip(3), images)

    apply = augment.augmentation

    def flipped_first(spec: str) -> augment.Transform:
        shifts = apply("crop4")
        return lambda images: shifts(by_content(images))

    with mock.patch.object(learners, "augmentation", flipped_first):
        yield


@contextmanager
def growing_pictures() -> Iterator[None]:
    """The first half of the steps sees pictures at three quarters of their side."""
    loss, steps = Finetune.loss, {"done": 0}

    def small(self: Finetune, batch: Any) -> torch.Tensor:
        steps["done"] += 1
        if steps["done"] <= 10 * EPOCH / 64 / 2:
            batch.x = F.interpolate(batch.x, scale_factor=0.75, mode="bilinear", antialias=True)
        return loss(self, batch)

    with mock.patch.object(Finetune, "loss", small):
        yield


@contextmanager
def compiled() -> Iterator[None]:
    forward = fastnet.FastNet.forward
    with mock.patch.object(fastnet.FastNet, "forward", torch.compile(forward)):
        yield


STRUCTURE: dict[str, Callable[[], Any]] = {
    "stem drawn and learned": own_stem,
    "filters drawn, not the identity": no_identity,
    "norms without a scale": fixed_scale,
    "biases at 64 times the rate": fast_biases,
    "moving average of the weights": moving_average,
    "flips that alternate": alternating_flips,
    "pictures of 24 pixels in the first half": growing_pictures,
    "torch.compile": compiled,
}


def first_task(flags: dict[str, Any], seed: int, root: str | None) -> tuple[float, float]:
    """Accuracy in percent, and seconds of processor time of learning."""
    torch.manual_seed(seed)
    config = configure({"method": "finetune", "benchmark": "cifar100-10", "preset": "fast", "tasks": 1, "validate": 20,
                        "class_order": "7", "seed": seed, "threads": 1, "data_root": root} | flags)
    stream = open_stream(config.settings)
    learner: Learner = learner_for(config, stream)
    start = time.process_time()
    learner.learn(stream.open(0))
    seconds = time.process_time() - start
    return evaluate(learner, stream, 1).class_incremental[0], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    parser.add_argument("--only", default="*", help="changes whose name is like this")
    parser.add_argument("--seeds", default="11", help="as in 11,12")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "results" / "recipe.json")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    report: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {
        "command": "python benchmarks/recipe.py", "changes": {}}
    for name in sorted([*FLAGS, *STRUCTURE], key=SLOWEST.__eq__):
        if not fnmatch(name, arguments.only):
            continue
        for seed in seeds:
            found = report["changes"].setdefault(name, {})
            if str(seed) in found:
                continue
            with STRUCTURE[name]() if name in STRUCTURE else mock.patch.dict({}):
                accuracy, seconds = first_task(FLAGS.get(name, {}), seed, arguments.data_root)
            found[str(seed)] = {"accuracy": round(accuracy, 2), "seconds": round(seconds, 1)}
            print(f"{name}, seed {seed}: {accuracy:.1f} % in {seconds:.0f} s", flush=True)
            write_atomic(arguments.out, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
