"""`protocore pack …`: look at, check, join or shrink a memory file."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.config import format_bytes, parse_bytes, plural
from protocore.errors import DataError, UserError

if TYPE_CHECKING:
    from protocore.codecs.base import Codec
    from protocore.memory.pack import Line, Pack

MAX_DRAWN = 2**27  # values of the pictures that are drawn together


def add_pack(commands: Any) -> None:
    pack = commands.add_parser("pack", help="look at, check, join or shrink a memory.pack file")
    verbs = pack.add_subparsers(dest="verb", metavar="VERB", required=True)
    inspect = verbs.add_parser("inspect", help="what a pack holds, in bytes")
    inspect.add_argument("file", type=Path)
    inspect.add_argument("--pictures", type=Path, metavar="PNG", help="draw the exemplars")
    inspect.add_argument("--json", action="store_true", help="for programs")
    says = ("check structure, hash and codec, and decode every exemplar; exits with 0 if all is well and with 1 if "
            "something is BAD")
    verify = verbs.add_parser("verify", help=says, description=f"{says[0].upper()}{says[1:]}.")
    verify.add_argument("file", type=Path)
    says = ("one pack of two; classes are matched by name. Prototypes of a class in both packs are averaged, which "
            "supposes that both packs come of one network")
    merge = verbs.add_parser("merge", help=says, description=f"{says[0].upper()}{says[1:]}.")
    merge.add_argument("first", type=Path)
    merge.add_argument("second", type=Path)
    prune = verbs.add_parser("prune", help="drop exemplars evenly until the file fits a budget")
    prune.add_argument("file", type=Path)
    prune.add_argument("--budget", required=True, help="bytes of the file, e.g. 64KB")
    for command, do in ((inspect, _inspect), (verify, _verify), (merge, _merge), (prune, _prune)):
        if command in (merge, prune):
            command.add_argument("--out", type=Path, required=True, help="the file to write")
        if command in (inspect, verify):
            command.add_argument("--codec", help="the codec that made the exemplars, e.g. vqgan:FILE for weights of "
                                 "your own (else the one that the pack names)")
        command.set_defaults(do=do)


def _codec_of(pack: Pack, codec: str | None) -> Codec | None:
    """The codec that the user names, else the one that the pack names. A pack has one: all its digests are the same."""
    from protocore.codecs import codec_named, codec_told
    from protocore.memory.codebook import take_codebook

    names = sorted({group.codec for group in pack.info.groups.values()})
    if not names:
        return None
    try:
        made = codec_named(codec, pack.info.image_shape) if codec else None
    except DataError as error:  # what was typed is no fault of the pack
        raise UserError(str(error)) from None
    made = made or codec_told(names[0], pack.info.image_shape)
    if made.spec == names[0]:
        take_codebook(made, pack.tensors)
    return made


def _inspect(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import read_pack, summary

    picture = _file(arguments.pictures, "--pictures") if arguments.pictures else None
    pack = read_pack(arguments.file)
    lines = summary(pack)
    if arguments.json:
        print(json.dumps({"method": pack.info.method, "image_shape": pack.info.image_shape,
                          "class_names": pack.info.class_names, "parts": [vars(line) for line in lines]}))
    else:
        _print_table(arguments.file, pack, lines)
    if picture:
        codec = _codec_of(pack, arguments.codec)
        if codec:
            _draw(pack, codec, picture)
    return 0


def _print_table(file: Path, pack: Pack, lines: list[Line]) -> None:
    from rich.table import Table
    from rich.text import Text

    from protocore.cli.terminal import Terminal
    from protocore.memory.pack.checks import plain

    # Text, for a string would be read as markup, and these are words of the file.
    title = Text(plain(f"{file}: {pack.info.method}, images {pack.info.image_shape}", 400), style="table.title")
    table = Table("part", "origin", "classes", "exemplars", "bytes", "a class", box=None)
    for line in lines:
        note = f" (shared; pays from {plural(line.pays_from, 'class')})" if line.pays_from else ""
        a_class = "" if line.class_bytes is None else format_bytes(line.class_bytes)
        table.add_row(Text(plain(line.part) + note), line.origin, str(line.classes or ""), str(line.exemplars or ""),
                      f"{line.bytes:,}", a_class)
    console = Terminal()
    console.print(title, soft_wrap=True)  # a table would break it at its own width
    console.print(table)


def _draw(pack: Pack, codec: Codec, path: Path) -> None:
    """A grid a group, named after it where there are several."""
    from protocore.bench.grids import COLUMNS, PICTURES, exemplar_grid, first_of
    from protocore.memory.pack import exemplars
    from protocore.memory.pack.checks import plain

    paths: dict[Path, str] = {}
    for name in pack.info.groups:
        own = path
        if len(pack.info.groups) > 1:
            stem = f"{path.stem}-{re.sub('[^A-Za-z0-9_.]+', '-', name)[:60]}"
            own = path.with_stem(stem)
            while own in paths:  # names that differ in odd signs only
                stem += "-"
                own = path.with_stem(stem)
        paths[own] = name
    for own, name in paths.items():
        _, counts = pack.tensors[f"{name}/labels"].unique(return_counts=True)
        most = min(COLUMNS, max(PICTURES // len(counts), 1))
        shown, shape = counts.clamp(max=most), pack.info.image_shape
        drawn = int(shown.sum())
        if drawn > PICTURES or drawn * math.prod(shape) > MAX_DRAWN:
            raise UserError(f"--pictures: {drawn:,} pictures of {shape} are more than can be drawn ({PICTURES:,}, and "
                            f"{MAX_DRAWN:,} values in all); leave it out")
        images, labels = exemplars(pack, codec, name, most)
        part = first_of(shown.tolist(), counts.tolist(), "of each class")  # the others are not even decoded
        exemplar_grid(images.numpy(), labels.numpy(), pack.info.class_names, own,
                      title=f"{plain(name)}, {part}" if part else plain(name))
        print(own)


def _file(path: Path, flag: str) -> Path:
    """The path of a file to write; said before the work is done rather than after it."""
    if path.is_dir():
        raise UserError(f"{flag} {path} is a folder: give the name of a file in it")
    return path


def _verify(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import verify

    findings = verify(arguments.file, partial(_codec_of, codec=arguments.codec))
    for finding in findings:
        print(("ok: " if finding.ok else "BAD: ") + finding.text)
    return 0 if all(finding.ok for finding in findings) else 1


def _merge(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import averaged, merge, read_pack, save_pack
    from protocore.memory.pack.checks import short

    out = _file(arguments.out, "--out")
    first, second = read_pack(arguments.first), read_pack(arguments.second)
    made = save_pack(out, merge(first, second))
    print(f"{out}: {made.info.ledger.total:,} bytes, {plural(len(made.info.class_names), 'class')}")
    means = averaged(first, second)
    if means:
        print(f"note: the two packs have different prototypes for {len(means)} of their classes ({short(means)}), "
              "which were averaged. That is right only if both packs come of one network; if they are of different "
              "runs, learn the classes with one learner instead.", file=sys.stderr)
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from protocore.memory.pack import prune, read_pack, save_pack

    out = _file(arguments.out, "--out")
    made = save_pack(out, prune(read_pack(arguments.file), parse_bytes(arguments.budget)))
    print(f"{out}: {made.info.ledger.total:,} bytes")
    return 0
