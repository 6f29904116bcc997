"""The command line. Words in, words out: nothing is computed here."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli_decoder import add_decoder
from protocore.cli_pack import add_pack
from protocore.config import Settings, flag, format_bytes, kind_of
from protocore.errors import UserError
from protocore.version import __version__

if TYPE_CHECKING:
    from protocore.config import Resolved
    from protocore.train.evaluate import Row
    from protocore.train.learner import Learner

GROUPS = {
    "data": "data and stream", "memory": "memory", "network": "network", "training": "training", "machine": "machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `protocore` command."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Waiting threads that spin make two threads on a busy two-core machine eleven times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"protocore: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nprotocore: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(f"protocore: {error.filename}: {error.strerror}; give a path that can be read and written",
              file=sys.stderr)
        return 2


def _dispatch(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="protocore", description="Continual learning of new classes with a memory counted in bytes.",
        epilog="`protocore COMMAND --help` explains a command; `protocore run METHOD --help` a method's options too.",
    )
    parser.add_argument("--version", action="version", version=f"protocore {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run(commands, _method_in(words))
    demo = commands.add_parser("demo", help="learn the embedded digits with three methods; a table and pictures")
    demo.add_argument("--runs", default="runs", help="folder of run folders (default: runs)")
    demo.set_defaults(do=_demo)
    listing = commands.add_parser("list", help="methods, benchmarks, backbones and codecs, one line each")
    listing.add_argument("what", nargs="?", choices=("methods", "benchmarks", "backbones", "codecs"))
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(do=_list)
    show = commands.add_parser("show", help="what a stored run was and what came out")
    show.add_argument("run", help="a run's folder, or its result.json")
    show.add_argument("--all", action="store_true", help="every setting, also those left at their default")
    show.add_argument("--json", action="store_true", help="for programs")
    show.set_defaults(do=_show)
    health = commands.add_parser("health", help="how good and how private the exemplars of a finished run are")
    health.add_argument("run", type=Path, help="a run's folder")
    health.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    health.add_argument("--steps", type=int, default=600, help="training steps of the fresh network (600)")
    health.add_argument("--json", action="store_true", help="for programs")
    health.set_defaults(do=_health)
    _add_data(commands)
    add_pack(commands)
    add_decoder(commands)
    arguments = parser.parse_args(words)
    return arguments.do(arguments)


# -- run ---------------------------------------------------------------------------------------------------


def _method_in(words: list[str]) -> str | None:
    """The method named on the command line, so that its own options become flags before parsing."""
    if not words or words[0] != "run":
        return None
    for i, word in enumerate(words[1:], 1):
        if word.startswith("--method="):
            return word.partition("=")[2]
        if word == "--method" and i + 1 < len(words):
            return words[i + 1]
        if word == "--like" and i + 1 < len(words):
            return _like(words[i + 1])["settings"]["method"]
        if word == "--config" and i + 1 < len(words):
            from protocore.config import read_config_file

            method = read_config_file(Path(words[i + 1])).get("method")
            if method:
                return str(method)
    return words[1] if len(words) > 1 and not words[1].startswith("-") else None


def _add_run(commands: Any, method_name: str | None) -> None:
    run = commands.add_parser(
        "run", help="run a method on a benchmark", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=argparse.SUPPRESS,
        description="Learn a benchmark's tasks one after the other, evaluate after each, store everything in a "
        "folder. The same command again goes on after an interruption, or shows the stored result.",
    )
    run.add_argument("method", nargs="?", help="see `protocore list methods` (protocore)")
    run.add_argument("benchmark", nargs="?", help="see `protocore list benchmarks`, or folder:PATH (digits)")
    run.add_argument("--config", type=Path, help="settings from a YAML or TOML file; flags win over it")
    run.add_argument("--like", help="take every setting from a stored run")
    run.add_argument("--runs", default="runs", help="folder of run folders")
    run.add_argument("--out", help="this run's own folder, instead of one named after its settings")
    run.add_argument("--restart", action="store_true", default=False, help="forget an unfinished run's checkpoint")
    run.add_argument("--again", action="store_true", default=False, help="run anew even where a result is stored")
    run.add_argument("--checkpoint-seconds", type=float, default=30.0, help="seconds between two checkpoints")
    run.add_argument("--json", action="store_true", default=False, help="print the result as JSON")
    run.add_argument("--quiet", action="store_true", default=False, help="no progress")
    run.add_argument("--no-figures", action="store_true", default=False, help="write no pictures")
    _flags(run.add_argument_group("run"), Settings, "run", skip=("method", "benchmark"))
    for group, title in GROUPS.items():
        _flags(run.add_argument_group(title), Settings, group)
    if method_name:
        from protocore.methods import method_named

        method = method_named(method_name)
        if dataclasses.fields(method.Options):
            _flags(run.add_argument_group(f"options of {method.name}"), method.Options, "method")
    run.set_defaults(do=_run)


def _flags(group: Any, cls: type, name: str, skip: Sequence[str] = ()) -> None:
    for field in dataclasses.fields(cls):
        if field.metadata.get("group") != name or field.name in skip:
            continue
        kind, _ = kind_of(cls, field.name)
        text = field.metadata["help"].replace("%", "%%")
        if field.metadata["choices"]:
            text += f" [{'|'.join(field.metadata['choices'])}]"
        if field.default is not None:
            text += f" (default: {field.default})"
        if kind is bool:
            group.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, help=text)
        else:
            shape = "BYTES" if field.name == "budget" else kind.__name__.upper()
            group.add_argument(flag(field.name), help=text, metavar=shape)


def _like(where: str) -> dict[str, Any]:
    from protocore.bench.results import read_result

    return read_result(Path(where))


_NOT_SETTINGS = ("command", "do", "config", "like", "runs", "out", "restart", "again", "checkpoint_seconds", "json",
                 "quiet", "no_figures")


def _run(arguments: argparse.Namespace) -> int:
    from protocore.train.run import configure

    flags = {k: v for k, v in vars(arguments).items() if k not in _NOT_SETTINGS and v is not None}
    like = _like(arguments.like) if hasattr(arguments, "like") else None
    config = configure(flags, config_file=getattr(arguments, "config", None), like=like)
    result, folder, was_stored = _execute(
        config, Path(arguments.runs), out=getattr(arguments, "out", None), again=arguments.again,
        restart=arguments.restart, every=arguments.checkpoint_seconds, quiet=arguments.quiet or arguments.json,
        figures=not arguments.no_figures,
    )
    if arguments.json:
        print(json.dumps(result))
        return 0
    from rich.console import Console

    from protocore.bench.tables import ledger_table, summary_table

    console = Console()
    console.print(summary_table([result]))
    console.print(ledger_table(result))
    if was_stored:
        console.print("This result was stored already; --again runs it anew.")
    _name_files(console, folder)
    return 0


def _name_files(console: Any, folder: Path) -> None:
    console.print(f"Run folder: {folder}", soft_wrap=True)
    for picture in sorted(folder.glob("*.png")):
        console.print(f"  {picture}", soft_wrap=True)


def _execute(config: Resolved, runs: Path, *, out: str | None = None, again: bool = False, restart: bool = False,
             every: float = 30.0, quiet: bool = False, figures: bool = True) -> tuple[dict[str, Any], Path, bool]:
    """Run, or read a stored result: (result, folder, whether it was stored already)."""
    from protocore.bench.results import differences, is_finished, read_result, run_folder
    from protocore.train.run import Interrupted, run

    folder = Path(out) if out else run_folder(runs, config)
    if is_finished(folder) and not (again or restart):
        result = read_result(folder)
        if others := differences(result, config):
            raise UserError(f"--out {folder} holds another run's result ({'; '.join(others[:3])}"
                            f"{'; …' if len(others) > 3 else ''}): give another folder, or --again to run anew there")
        return result, folder, True
    stop = _Stop()
    reporter = None if quiet else _Progress(config)

    def draw(learner: Learner, result: dict[str, Any]) -> None:
        if figures:
            _draw(learner, result, folder)

    try:
        with stop:
            if reporter:
                with reporter:
                    result = run(config, folder, reporter=reporter, checkpoint_seconds=every, restart=restart or again,
                                 stop=stop.asked, finished=draw)
            else:
                result = run(config, folder, checkpoint_seconds=every, restart=restart or again, stop=stop.asked,
                             finished=draw)
    except Interrupted:
        print(f"protocore: stopped; the checkpoint is in {folder}, and the same command goes on from there",
              file=sys.stderr)
        raise SystemExit(130) from None
    return result, folder, False


def _draw(learner: Learner, result: dict[str, Any], folder: Path) -> None:
    from protocore.bench import figures

    figures.accuracy_curves([result], folder / "accuracy.png")
    figures.matrix_heatmap(result, folder / "matrix.png")
    if "steps" in (records := learner.method.records()):
        figures.condensation_figure({k: v.numpy() for k, v in records.items()}, folder / "condensation.png",
                                    learner.classes_)
    for store in learner.method.stores():
        if len(store):
            name = store.name.replace(" ", "-")
            figures.exemplar_grid(store.images.numpy(), store.labels.numpy(), learner.classes_, folder / f"{name}.png",
                                  title=f"{store.name} of {result['settings']['method']}")


class _Stop:
    """Ctrl-C asks the run to write its checkpoint and stop; a second one stops at once."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def asked(self) -> bool:
        return self._asked

    def _handle(self, number: int, frame: Any) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> _Stop:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


class _Progress:
    """A bar with the current loss and the time left, and a line for every task that is learned."""

    def __init__(self, config: Resolved) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.console = Console(stderr=True)
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                            TextColumn("{task.fields[note]}"), console=self.console, transient=True)
        self.name = f"{config.settings.method} on {config.settings.benchmark}"
        self.item: Any = None
        self.first = self.begun = 0.0
        self.index = self.of = self.done_before = 0

    def __enter__(self) -> _Progress:
        self.bar.start()
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def task(self, index: int, of: int, classes: int) -> None:
        if self.item is not None:
            self.bar.remove_task(self.item)
        else:
            self.done_before = index
        self.index, self.of = index, of
        self.item = self.bar.add_task(f"{self.name}: task {index + 1} of {of}", total=None, note="")

    def step(self, done: int, of: int, loss: float) -> None:
        share = self.index - self.done_before + done / of
        left = (time.monotonic() - self.begun) / max(share, 1e-9) * (self.of - self.done_before - share)
        self.bar.update(self.item, completed=done, total=of, note=f"loss {loss:.3f}, {_clock(left)} left")

    def inner(self, what: str, done: int, of: int) -> None:
        self.bar.update(self.item, completed=done, total=of, note=what)

    def row(self, index: int, row: Row, kept: int) -> None:
        mean = sum(row.class_incremental) / len(row.class_incremental)
        told = sum(row.task_incremental) / len(row.task_incremental)
        self.console.print(f"{self.name}, after task {index + 1} of {self.of}: {mean:.1f} % of all seen classes, "
                           f"{told:.1f} % knowing the task; {format_bytes(kept)} kept", highlight=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# -- demo, list, show, data --------------------------------------------------------------------------------


def _demo(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from protocore.bench import figures
    from protocore.bench.tables import summary_table
    from protocore.train.run import configure

    runs = Path(arguments.runs)
    results, folders = [], []
    for flags in ({"method": "finetune"}, {"method": "er"}, {"method": "protocore"}):
        config = configure({**flags, "benchmark": "digits"})
        result, folder, _ = _execute(config, runs, again=True)
        results.append(result)
        folders.append(folder)
    console = Console()
    console.print(summary_table(results))
    figures.accuracy_curves(results, runs / "demo-accuracy.png")
    figures.bytes_figure(results, runs / "demo-bytes.png")
    console.print("Pictures:")
    for picture in [*sorted(runs.glob("demo-*.png")), *(p for f in folders for p in sorted(f.glob("*.png")))]:
        console.print(f"  {picture}", soft_wrap=True)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from protocore.backbones import BACKBONES
    from protocore.data.benchmarks import BENCHMARKS
    from protocore.decoders import DECODERS
    from protocore.methods import METHODS

    tables: dict[str, dict[str, str]] = {
        "methods": {name: f"{' '.join((m.__doc__ or '').split())} ({m.paper})" for name, m in METHODS.items()},
        "benchmarks": {name: b.summary for name, b in BENCHMARKS.items()}
        | {"folder:PATH": "your own pictures, one folder a class; tasks of --classes-per-task"},
        "backbones": {name: b.description for name, b in BACKBONES.items()},
        "codecs": {name: line for name, (_, line) in DECODERS.items()},
    }
    chosen = {k: v for k, v in tables.items() if arguments.what in (None, k)}
    details = {name: {"paper": m.paper, "keeps": m.keeps, "bytes_a_class_on_cifar100": m.class_bytes,
                      "fits": list(m.fits), "checks": m.checks} for name, m in METHODS.items()}
    if arguments.json:
        print(json.dumps(chosen | ({"method_details": details} if "methods" in chosen else {})))
        return 0
    from rich.console import Console
    from rich.table import Table

    if arguments.what == "methods":
        table = Table(title="methods (bytes a class: CIFAR-100, its default number of exemplars a class as pixels, "
                      "which is 20, and 1 for protocore)", title_justify="left", box=None, pad_edge=False)
        for heading in ("name", "paper", "keeps", "bytes a class", "fits", "checks"):
            table.add_column(heading, justify="right" if heading.startswith("bytes") else "left",
                             no_wrap=heading in ("name", "fits"), overflow="fold")
        for name, m in METHODS.items():
            size = "all data" if m.class_bytes is None else f"{m.class_bytes:,}"
            table.add_row(f"[bold]{name}[/]", m.paper, m.keeps, size, "\n".join(m.fits), m.checks)
            table.add_section()
        Console().print(table)
        return 0
    for title, rows in chosen.items():
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, line in rows.items():
            table.add_row(name, line)
        Console().print(table)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from protocore.bench.results import read_result

    result = read_result(Path(arguments.run))
    if arguments.json:
        print(json.dumps(result))
        return 0
    from rich.console import Console

    from protocore.bench.tables import config_table, ledger_table, matrix_table, summary_table

    console = Console()
    console.print(summary_table([result]))
    console.print(matrix_table(result["class_incremental"]["R"]))
    console.print(ledger_table(result))
    console.print(config_table(result, all=arguments.all))
    console.print(f"Again: {result['command']}", soft_wrap=True, highlight=False)
    if Path(arguments.run).is_dir():
        _name_files(console, Path(arguments.run))
    return 0


def _health(arguments: argparse.Namespace) -> int:
    from protocore.bench.health import health
    from protocore.bench.tables import health_table

    if arguments.steps < 1:
        raise UserError(f"--steps {arguments.steps} must be at least 1")
    report = health(arguments.run, data_root=arguments.data_root, steps=arguments.steps)
    if arguments.json:
        print(json.dumps(report))
        return 0
    from rich.console import Console

    console = Console()
    console.print(health_table(report))
    console.print(f"A network trained on the data just now ({report['fresh_steps']} steps) gets "
                  f"{report['fresh_network_test_accuracy']:.1f} % of the test pictures right.", highlight=False)
    for name in ("health.json", "health.png"):
        console.print(f"  {arguments.run / name}", soft_wrap=True)
    return 0


def _add_data(commands: Any) -> None:
    data = commands.add_parser("data", help="download a data set, or check what is there")
    verbs = data.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, text, do in (("get", "download from the canonical address, with checksum and resume", _data_get),
                           ("check", "verify the files of a data set", _data_check)):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("name", help="cifar10, cifar100, mnist, fashion-mnist, tinyimagenet or imagenet, or a "
                             "benchmark that is made of one")
        command.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA, else data)")
        command.set_defaults(do=do)


def _data_set(name: str) -> str:
    """The data set of this name, or that a benchmark of this name is made of."""
    from protocore.data.benchmarks import BENCHMARKS

    return BENCHMARKS[name].source or name if name in BENCHMARKS else name


def _data_get(arguments: argparse.Namespace) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from protocore.data.benchmarks import data_root
    from protocore.data.fetch import get

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress("{task.description}", *columns) as bar:
        items: dict[str, Any] = {}

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in items:
                items[name] = bar.add_task(name, total=total)
            bar.update(items[name], completed=done, total=total)

        folder = get(_data_set(arguments.name), data_root(arguments.data_root), progress=progress)
    print(f"{arguments.name}: ready in {folder}")
    return 0


def _data_check(arguments: argparse.Namespace) -> int:
    from protocore.data.benchmarks import data_root
    from protocore.data.fetch import check

    findings = check(_data_set(arguments.name), data_root(arguments.data_root))
    for finding in findings:
        text = finding.met if finding.ok else f"expected {finding.expected}; met {finding.met}"
        print(f"{finding.state}: {finding.path}: {text}")
    return 0 if all(finding.ok for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
