"""`protocore export`: a learner as a file that predicts without torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.config import plural

if TYPE_CHECKING:
    from protocore.learn.export import Export

_HOW = """\
The ONNX file takes uint8 pictures (N, channels, height, width) and gives the scores of every class; normalisation is
inside, and the metadata hold the names of the classes, the size of the pictures and how they are made to fit. It is
run by onnxruntime in any language, and in Python without torch by protocore.device (docs/export.md)."""


def add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export", help="a learner as an ONNX file that predicts without torch", epilog=_HOW,
        description="Write a learner as an ONNX file. It is compared with the learner before it is written.",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    export.add_argument("learner", type=Path, metavar="X.learner", help="the file of a learner")
    export.add_argument("out", type=Path, metavar="X.onnx", help="the file to write")
    export.add_argument("--int8", action="store_true", help="weights and activations in eight bits: about half the "
                        "size, more or less with the network; what that costs is measured and told")
    export.add_argument("--torch", dest="pt2", type=Path, metavar="OUT.pt2", help="write torch.export's program, too")
    export.add_argument("--pictures", type=Path, metavar="FOLDER", help="pictures to compare on, one folder a class "
                        "(default: those of the memory, and noise where it holds none)")
    export.add_argument("--json", action="store_true", help="for programs")
    export.set_defaults(do=_export)


def _export(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from protocore.learn.export import export_learner, pictures_of
    from protocore.learn.learner import Learner

    learner = Learner.load(arguments.learner)
    skipped: list[str] = []
    pictures, labels = None, None
    # On the other stream: what is printed may be read by a program.
    with Console(stderr=True).status("reading") as status:
        if arguments.pictures is not None:
            pictures, labels, skipped = pictures_of(arguments.pictures, learner.image_shape)
        done = export_learner(learner, arguments.out, int8=arguments.int8, pt2=arguments.pt2, pictures=pictures,
                              labels=labels, told=status.update)
    if arguments.json:
        print(json.dumps(done.to_json() | {"skipped": skipped}))
        return 0
    for line in (*(f"left out: {one}" for one in skipped), *_lines(done)):
        print(line)
    return 0


def _lines(done: Export) -> list[str]:
    parity, lines = done.parity, [f"{done.path}: {plural(done.classes, 'class')}, {done.bytes:,} bytes, "
                                  f"sha256 {done.sha256}"]
    of = {"the memory": "of the memory", "the caller": "of your own",
          "noise": "of noise, as the memory holds none (--pictures FOLDER takes real ones)"}[parity.of]
    lines.append(f"as torch says it: scores differ by {parity.difference:.1g} at most, on "
                 f"{plural(parity.pictures, 'picture')} {of}")
    if (low := done.int8) is not None:
        lines.append(f"int8: {done.bytes:,} bytes in place of {low.float_bytes:,}; the same name for "
                     f"{100 * low.agreement:.1f} % of {plural(low.pictures, 'picture')}")
        if low.accuracy is not None and low.float_accuracy is not None:
            lines.append(f"      accuracy {100 * low.accuracy:.1f} %, in floats {100 * low.float_accuracy:.1f} %")
    if done.pt2 is not None:
        lines.append(f"{done.pt2}: the same for torch.export.load")
    lines.append(f"classes are fixed: {done.fixed}" if done.fixed else "a device can add classes: protocore.device")
    return lines
