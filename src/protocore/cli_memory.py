"""Commands about what is kept: `protocore pack …` and `protocore decoder …`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.config import format_bytes, parse_bytes
from protocore.errors import UserError

if TYPE_CHECKING:
    from protocore.decoders.base import Decoder
    from protocore.memory.pack import Pack


def add_pack(commands: Any) -> None:
    pack = commands.add_parser("pack", help="look at, check, join or shrink a memory.pack file")
    verbs = pack.add_subparsers(dest="verb", metavar="VERB", required=True)
    inspect = verbs.add_parser("inspect", help="what a pack holds, in bytes")
    inspect.add_argument("file", type=Path)
    inspect.add_argument("--pictures", type=Path, metavar="PNG", help="draw the exemplars")
    inspect.add_argument("--json", action="store_true", help="for programs")
    verify = verbs.add_parser("verify", help="check structure, hash and decoder, and decode every exemplar")
    verify.add_argument("file", type=Path)
    merge = verbs.add_parser("merge", help="one pack of two; classes are matched by name")
    merge.add_argument("first", type=Path)
    merge.add_argument("second", type=Path)
    prune = verbs.add_parser("prune", help="drop exemplars evenly until the file fits a budget")
    prune.add_argument("file", type=Path)
    prune.add_argument("--budget", required=True, help="bytes of the file, e.g. 64KB")
    for command, do in ((inspect, _inspect), (verify, _verify), (merge, _merge), (prune, _prune)):
        if command in (merge, prune):
            command.add_argument("--out", type=Path, required=True, help="the file to write")
        if command in (inspect, verify):
            command.add_argument("--codec", help="the codec that made the exemplars, e.g. webp:10 (else its default)")
        command.set_defaults(do=do)


def _decoder_of(pack: Pack, codec: str | None) -> Decoder | None:
    """The codec that the pack names, or that the user names where a number belongs to it."""
    from protocore.decoders import decoder_named

    names = sorted({group.decoder for group in pack.info.groups.values()})
    return decoder_named(codec or names[0], pack.info.image_shape) if names else None


def _inspect(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import exemplars, read_pack, summary

    pack = read_pack(arguments.file)
    lines = summary(pack)
    if arguments.json:
        print(json.dumps({"method": pack.info.method, "image_shape": pack.info.image_shape,
                          "class_names": pack.info.class_names, "parts": [vars(line) for line in lines]}))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("part", "origin", "classes", "exemplars", "bytes", "a class", box=None, title_justify="left",
                      title=f"{arguments.file}: {pack.info.method}, images {pack.info.image_shape}")
        for line in lines:
            note = f" (shared; pays from {line.pays_from} classes)" if line.pays_from else ""
            a_class = "" if line.class_bytes is None else format_bytes(line.class_bytes)
            table.add_row(line.part + note, line.origin, str(line.classes or ""), str(line.exemplars or ""),
                          f"{line.bytes:,}", a_class)
        Console().print(table)
    if arguments.pictures:
        from protocore.bench.figures import exemplar_grid

        decoder = _decoder_of(pack, arguments.codec)
        for name in pack.info.groups if decoder else ():
            images, labels = exemplars(pack, decoder, name)  # type: ignore[arg-type]
            path = arguments.pictures
            if len(pack.info.groups) > 1:
                path = path.with_stem(f"{path.stem}-{name.replace(' ', '-')}")
            exemplar_grid(images.numpy(), labels.numpy(), pack.info.class_names, path, title=name)
            print(path)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import read_pack, verify

    findings = verify(arguments.file, _decoder_of(read_pack(arguments.file), arguments.codec))
    for finding in findings:
        print(("ok: " if finding.ok else "BAD: ") + finding.text)
    return 0 if all(finding.ok for finding in findings) else 1


def _merge(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import merge, read_pack, save_pack

    made = save_pack(arguments.out, merge(read_pack(arguments.first), read_pack(arguments.second)))
    print(f"{arguments.out}: {made.info.ledger.total:,} bytes, {len(made.info.class_names)} classes")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import prune, read_pack, save_pack

    made = save_pack(arguments.out, prune(read_pack(arguments.file), parse_bytes(arguments.budget)))
    print(f"{arguments.out}: {made.info.ledger.total:,} bytes")
    return 0


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
