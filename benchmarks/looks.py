"""How well a small network tells decoded pictures from raw ones: the size of what a look gives away.

    python benchmarks/looks.py --data-root DIR [--pictures 4000]

Half of the training pictures of CIFAR-100 that are taken pass through the codec, the others stay raw; the network of
preset `fast` learns which is which for 5 epochs. Its accuracy is measured on test pictures, each of them once raw and
once decoded: 50 % is a look that gives nothing away. Writes results/looks.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from protocore import Learner
from protocore.codecs import Codec, codec_named
from protocore.data.augment import to_float
from protocore.data.benchmarks import benchmark_named, data_root
from protocore.data.images import Images
from protocore.memory.codings import to_uint8

CODECS = ("vqgan:1", "vqgan:2", "vqgan:4", "vqgan:8", "webp:10", "webp:50", "webp:90", "jpeg:25", "pixels")


def there_and_back(codec: Codec, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([to_uint8(codec.decode(codec.from_bytes(codec.to_bytes(codec.encode(to_float(part))))))
                          for part in images.split(128)])


def some(images: Images, count: int) -> torch.Tensor:
    return torch.from_numpy(images.take(np.linspace(0, len(images) - 1, min(count, len(images))).astype(int)))


def told_apart(codec: Codec, train: torch.Tensor, test: torch.Tensor) -> float:
    """Accuracy in percent."""
    raw, coded = train[0::2], there_and_back(codec, train[1::2])
    learner = Learner("finetune", image_shape=tuple(train.shape[1:]), backbone="fastnet", optimizer="muon", lr=0.1,
                      schedule="triangle", epochs=5, batch=64, augment="crop4,flip")
    learner.partial_fit(torch.cat([raw, coded]), ["raw"] * len(raw) + ["decoded"] * len(coded))
    shown = torch.cat([test, there_and_back(codec, test)])
    return 100 * learner.score(shown, ["raw"] * len(test) + ["decoded"] * len(test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "results" / "looks.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train, test = benchmark_named("cifar100-10").read(data_root(arguments.data_root), None)
    report: dict[str, object] = {"command": f"python benchmarks/looks.py --pictures {arguments.pictures}",
                                 "data_digest": train.digest}
    for name in CODECS:
        codec = codec_named(name, train.images.shape)
        accuracy = told_apart(codec, some(train.images, arguments.pictures), some(test.images, 1000))
        report[name] = {"accuracy": round(accuracy, 1)}
        print(name, report[name], flush=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
