"""What each codec makes of test pictures: bytes, PSNR, and milliseconds to encode and decode, WebP beside the codes.

    python benchmarks/codecs.py --data-root DIR [--pictures 2000]

PSNR is the mean over pictures of 10 log10(1 / mse) after rounding to uint8. Times are processor time of one thread in
batches of 128. "entropy" is what an ideal coder would need that knows how often each code occurs in each stage of these
very pictures; a codec with `,entropy` is a real one, which knows the decoder's training pictures. Writes
results/codecs.json; `--codecs` measures some codecs only and leaves the rest of that file as it is.
"""

from __future__ import annotations

import argparse
import json
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protocore.codecs import Codec, codec_named
from protocore.codecs.vqgan import VQGANCodec
from protocore.data.augment import to_float
from protocore.data.benchmarks import benchmark_named, data_root
from protocore.memory.codings import to_uint8

COLOUR = ("vqgan:4", "vqgan:4,sweeps=2", "vqgan:4,entropy", "webp:1", "webp:10", "vqgan:8", "vqgan:8,sweeps=2",
          "vqgan:8,entropy", "webp:50", "jpeg:25")
GREY = ("vqgan:1", "vqgan:2", "vqgan:2,entropy", "webp:10", "vqgan:4", "vqgan:4,entropy", "webp:50")
CASES = {"cifar100-10": COLOUR, "cifar10": COLOUR, "tinyimagenet-20": COLOUR, "fashion-mnist": GREY, "mnist": GREY,
         "digits": GREY}
SLOW = 500  # pictures at most where the codes are searched for in sweeps


def measure(made: Codec, images: Tensor) -> dict[str, Any]:
    psnr, sizes, clocks, codes = [], [], [], []
    for part in images.split(128):
        x = to_float(part)
        start = time.process_time()
        stored = made.to_bytes(made.encode(x))
        middle = time.process_time()
        decoded = to_uint8(made.decode(made.from_bytes(stored)))
        clocks.append(((middle - start) / len(part), (time.process_time() - middle) / len(part)))
        mse = (to_float(decoded) - x).square().flatten(1).mean(1).clamp_min(1e-10)
        psnr.append(-10 * torch.log10(mse))
        sizes += [len(s) for s in stored]
        if isinstance(made, VQGANCodec):
            codes.append(made.indices(made.from_bytes(stored)))
    encode, decode = (1000 * float(np.median([c[i] for c in clocks])) for i in (0, 1))
    report = {"psnr": round(float(torch.cat(psnr).mean()), 2), "bytes": round(float(np.mean(sizes)), 1),
              "encode_ms": round(encode, 2), "decode_ms": round(decode, 2), "pictures": len(images),
              "shared_bytes": made.shared_bytes}
    return report | ({"entropy_bytes": round(entropy(torch.cat(codes)), 1)} if codes else {})


def entropy(codes: Tensor) -> float:
    """Bytes of a picture's codes (N, stages, h, w) at the entropy of each stage."""
    total = 0.0
    for stage in codes.unbind(1):
        share = torch.bincount(stage.flatten()).double()
        share = share[share > 0] / share.sum()
        total -= float((share * share.log2()).sum()) * stage[0].numel()
    return total / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    parser.add_argument("--pictures", type=int, default=2000, help="test pictures of each data set, at most")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "results" / "codecs.json")
    parser.add_argument("--codecs", default="*", metavar="PATTERN", help="codecs to measure, e.g. '*,entropy'")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    before = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    report: dict[str, Any] = {"command": f"python benchmarks/codecs.py --pictures {arguments.pictures}"}
    for name, codecs in CASES.items():
        _, test = benchmark_named(name).read(data_root(arguments.data_root), None)
        report[name] = {"data_digest": test.digest}
        for codec in codecs:
            if not fnmatch(codec, arguments.codecs):
                report[name][codec] = before[name][codec]
                continue
            made = codec_named(codec, test.images.shape)
            count = min(len(test.images), SLOW if "sweeps" in codec else arguments.pictures)
            pictures = torch.from_numpy(test.images.take(np.linspace(0, len(test.images) - 1, count).astype(int)))
            report[name][codec] = measure(made, pictures)
            print(name, codec, report[name][codec], flush=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
