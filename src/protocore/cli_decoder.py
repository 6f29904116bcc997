"""`protocore decoder …`: train a codec on one's own pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from protocore.errors import UserError


def add_decoder(commands: Any) -> None:
    decoder = commands.add_parser("decoder", help="train a small VQGAN codec on one's own pictures")
    verbs = decoder.add_subparsers(dest="verb", metavar="VERB", required=True)
    train = verbs.add_parser("train", help="encoder, residual codebooks and decoder; PSNR, codebook use, a picture",
                             formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    train.add_argument("--data", required=True, help="a benchmark or folder:PATH; its training pictures are used")
    train.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    train.add_argument("--out", type=Path, default=Path("decoder.safetensors"), help="the file to write")
    train.add_argument("--factor", type=int, default=4, help="pixels of a code's side")
    train.add_argument("--codes", type=int, default=512, help="codes of each codebook")
    train.add_argument("--stages", type=int, default=2, help="residual stages: indices a position")
    train.add_argument("--code-dim", type=int, default=32, help="length of a code")
    train.add_argument("--width", type=int, default=32, help="channels of the networks")
    train.add_argument("--adversarial", type=float, default=0.1, metavar="SHARE",
                       help="last share of the training with a patch discriminator: sharper pictures (0: none)")
    train.add_argument("--minutes", type=float, help="how long to train (10 where --steps is not given)")
    train.add_argument("--steps", type=int, help="steps to train, instead of --minutes; repeatable by seed")
    train.add_argument("--seed", type=int, default=0, help="drives everything random")
    train.set_defaults(do=_train_decoder)


def _train_decoder(arguments: argparse.Namespace) -> int:
    import numpy as np
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from protocore.data.benchmarks import benchmark_named, data_root
    from protocore.decoders.vqgan import VQGANConfig
    from protocore.decoders.vqgan.training import TrainingOptions, train_decoder

    if arguments.minutes is not None and arguments.steps is not None:
        raise UserError("--minutes and --steps exclude each other; leave one of them out")
    if not 0 <= arguments.adversarial <= 1:
        raise UserError(f"--adversarial {arguments.adversarial}: give a share of the training, 0 to 1")
    minutes = None if arguments.steps else arguments.minutes or 10.0
    train, test = benchmark_named(arguments.data).read(data_root(arguments.data_root), None)
    pictures = train.images.take(np.arange(len(train.images)))
    held_out = test.images.take(np.arange(min(len(test.images), 1000)))
    config = VQGANConfig(channels=pictures.shape[1], factor=arguments.factor, codes=arguments.codes,
                         stages=arguments.stages, code_dim=arguments.code_dim,
                         code_rank=min(arguments.code_dim, 20), width=arguments.width)
    with Progress(TextColumn("step {task.fields[step]}"), BarColumn(), TextColumn("loss {task.fields[loss]:.4f}"),
                  TimeRemainingColumn()) as bar:
        item = bar.add_task("", total=1.0, step=0, loss=0.0)

        def progress(row: dict[str, Any]) -> None:
            bar.update(item, completed=min(row["done"], 1.0), step=row["step"], loss=row["loss"])

        report = train_decoder(pictures, config, held_out=held_out, minutes=minutes, steps=arguments.steps,
                               seed=arguments.seed, options=TrainingOptions(adversarial=arguments.adversarial),
                               progress=progress, out=arguments.out)
    for point in report["held_out"]:
        used = ", ".join(f"{100 * share:.0f} %" for share in point["codes_used"])
        print(f"{point['exemplar_bytes']} bytes an exemplar ({point['stages']} stages): {point['psnr']:.2f} dB on "
              f"{point['pictures']} held-out pictures; codes used {used}")
    print(f"{arguments.out}\n{arguments.out.with_suffix('.png')}")
    return 0
