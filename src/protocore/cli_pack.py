"""`protocore pack …`: look at, check, join or shrink a memory file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.config import format_bytes, parse_bytes

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
