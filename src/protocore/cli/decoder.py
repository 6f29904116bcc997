"""`protocore decoder …`: train a codec on one's own pictures."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from protocore.config import plural
from protocore.errors import UserError

_HELD_OUT = 1000  # test pictures that are measured
_RANK = 20  # dimensions of a stage's codes, where a latent vector has as many
_MINUTES = 10.0


def add_decoder(commands: Any) -> None:
    decoder = commands.add_parser("decoder", help="train a small VQGAN codec on one's own pictures")
    verbs = decoder.add_subparsers(dest="verb", metavar="VERB", required=True)
    train = verbs.add_parser("train", help="encoder, residual codebooks and decoder; PSNR, codebook use, a picture")
    train.add_argument("--data", required=True, help="a benchmark or folder:PATH: its training pictures are used, and "
                       f"up to {_HELD_OUT} of its test pictures to measure")
    train.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    train.add_argument("--out", type=Path, default=Path("decoder.safetensors"), metavar="NAME.safetensors",
                       help="the file to write; NAME.json (a report) and NAME.png (reconstructions) are written beside "
                       "it (default: %(default)s)")
    train.add_argument("--factor", type=int, default=4, help="pixels of a code's side, a power of two "
                       "(default: %(default)s)")
    train.add_argument("--codes", type=int, default=512, help="codes of each codebook (default: %(default)s)")
    train.add_argument("--stages", type=int, default=2, help="residual stages: indices a position "
                       "(default: %(default)s)")
    train.add_argument("--code-dim", type=int, default=32, help="length of a latent vector; a stage's codes span at "
                       f"most {_RANK} of its dimensions (default: %(default)s)")
    train.add_argument("--width", type=int, default=32, help="channels of the encoder and of the decoder; a third more "
                       "at a code's resolution (default: %(default)s)")
    train.add_argument("--adversarial", type=float, default=0.1, metavar="SHARE",
                       help="last share of the training with a patch discriminator: sharper pictures; 0: none "
                       "(default: %(default)s)")
    train.add_argument("--minutes", type=float,
                       help=f"how long to train (default: {_MINUTES:g}, unless --steps is given)")
    train.add_argument("--steps", type=int, help="steps to train, instead of --minutes; repeatable by seed")
    train.add_argument("--seed", type=int, default=0, help="drives everything random (default: %(default)s)")
    train.set_defaults(do=_train_decoder)


def _train_decoder(arguments: argparse.Namespace) -> int:
    import numpy as np
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from protocore.codecs.vqgan import VQGANConfig
    from protocore.codecs.vqgan.files import check_out
    from protocore.codecs.vqgan.training import TrainingOptions, train_decoder
    from protocore.data.benchmarks import benchmark_named, data_root

    minutes = _minutes(arguments)
    if not 0 <= arguments.adversarial <= 1:
        raise UserError(f"--adversarial {arguments.adversarial}: give a share of the training, 0 to 1")
    for name, most in (("factor", 64), ("codes", 65_536), ("stages", 64), ("code_dim", 4_096), ("width", 4_096),
                       ("steps", 10**9), ("minutes", 10**6)):
        value = getattr(arguments, name)
        if value is not None and not 0 < value <= most:
            raise UserError(f"--{name.replace('_', '-')} {value:g}: give a number above 0, at most {most:,}")
    if not 0 <= arguments.seed < 2**63:  # what torch takes
        raise UserError(f"--seed {arguments.seed}: give a whole number from 0 to 2^63 - 1")
    try:
        check_out(arguments.out)  # `train_decoder` does so too, but large data would be read first
    except UserError as error:
        raise UserError(f"--out {error}") from None
    train, test = benchmark_named(arguments.data).read(data_root(arguments.data_root), None)
    pictures = train.images.take(np.arange(len(train.images)))
    held_out = test.images.take(np.arange(min(len(test.images), _HELD_OUT)))
    config = VQGANConfig(channels=pictures.shape[1], factor=arguments.factor, codes=arguments.codes,
                         stages=arguments.stages, code_dim=arguments.code_dim,
                         code_rank=min(arguments.code_dim, _RANK), width=arguments.width,
                         encoder_width=arguments.width)
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
        print(f"{point['exemplar_bytes']} bytes an exemplar ({plural(point['stages'], 'stage')}): "
              f"{point['psnr']:.2f} dB on {point['pictures']} held-out pictures; codes used {used}")
    print(f"{arguments.out}\n{arguments.out.with_suffix('.png')}")
    return 0


def _minutes(arguments: argparse.Namespace) -> float | None:
    """How long to train; `None` where steps are counted instead."""
    if arguments.minutes is not None and arguments.steps is not None:
        raise UserError("--minutes and --steps exclude each other; leave one of them out")
    if arguments.steps is not None:
        if arguments.steps < 1:
            raise UserError(f"--steps {arguments.steps}: give a whole number, 1 or more")
        return None
    minutes = _MINUTES if arguments.minutes is None else arguments.minutes
    if not 0 < minutes < math.inf:  # false for nan too
        raise UserError(f"--minutes {minutes:g}: give a number above zero, for example {_MINUTES:g}")
    return minutes
