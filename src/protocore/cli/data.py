"""The `protocore data` commands."""

from __future__ import annotations

import argparse
from typing import Any


def add_data(commands: Any) -> None:
    data = commands.add_parser("data", help="download a data set, or check what is there")
    verbs = data.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, text, do in (("get", "download from the canonical address, with checksum and resume", _data_get),
                           ("check", "verify the files of a data set", _data_check)):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("name", help="cifar10, cifar100, mnist, fashion-mnist, tinyimagenet or imagenet, or a "
                             "benchmark that is made of one")
        command.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA, else data)")
        command.set_defaults(do=do)


def _data_get(arguments: argparse.Namespace) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from protocore.data.benchmarks import data_root, source_named
    from protocore.data.fetch import get

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress("{task.description}", *columns) as bar:
        items: dict[str, Any] = {}

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in items:
                items[name] = bar.add_task(name, total=total)
            bar.update(items[name], completed=done, total=total)

        folder = get(source_named(arguments.name), data_root(arguments.data_root), progress=progress)
    print(f"{arguments.name}: ready in {folder}")
    return 0


def _data_check(arguments: argparse.Namespace) -> int:
    from protocore.data.benchmarks import data_root, source_named
    from protocore.data.fetch import check

    findings = check(source_named(arguments.name), data_root(arguments.data_root))
    for finding in findings:
        text = finding.met if finding.ok else f"expected {finding.expected}; met {finding.met}"
        print(f"{finding.state}: {finding.path}: {text}")
    return 0 if all(finding.ok for finding in findings) else 1
