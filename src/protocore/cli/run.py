"""The `protocore run` and `protocore demo` commands: settings in, a run folder and tables out."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.stop import Stop
from protocore.config import Settings, flag, kind_of
from protocore.errors import UserError

if TYPE_CHECKING:
    from protocore.config import Resolved
    from protocore.learn.learner import Learner

GROUPS = {
    "data": "data and stream", "memory": "memory", "network": "network", "training": "training", "machine": "machine",
}


def method_in(words: list[str]) -> str | None:
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


def add_run(commands: Any, method_name: str | None) -> None:
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
    from protocore.runs.results import read_result

    return read_result(Path(where))


_NOT_SETTINGS = ("command", "do", "config", "like", "runs", "out", "restart", "again", "checkpoint_seconds", "json",
                 "quiet", "no_figures")


def _run(arguments: argparse.Namespace) -> int:
    from protocore.runs.job import configure

    flags = {k: v for k, v in vars(arguments).items() if k not in _NOT_SETTINGS and v is not None}
    like = _like(arguments.like) if hasattr(arguments, "like") else None
    config = configure(flags, config_file=getattr(arguments, "config", None), like=like)
    result, folder, was_stored = execute(
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
    if was_stored or arguments.quiet:  # else they have been said while it ran
        tell_notes(console, result)
    if was_stored:
        console.print("This result was stored already; --again runs it anew.")
    name_files(console, folder)
    return 0


def tell_notes(console: Any, result: dict[str, Any]) -> None:
    for note in result.get("notes", ()):
        console.print(f"Note: {note}", highlight=False, markup=False)


def name_files(console: Any, folder: Path) -> None:
    console.print(f"Run folder: {folder}", soft_wrap=True)
    for picture in sorted(folder.glob("*.png")):
        console.print(f"  {picture}", soft_wrap=True)


def execute(config: Resolved, runs: Path, *, out: str | None = None, again: bool = False, restart: bool = False,
             every: float = 30.0, quiet: bool = False, figures: bool = True) -> tuple[dict[str, Any], Path, bool]:
    """Run, or read a stored result: (result, folder, whether it was stored already)."""
    from protocore.runs.job import Interrupted, run
    from protocore.runs.reporters import RunProgress
    from protocore.runs.results import differences, is_finished, read_result, run_folder

    folder = Path(out) if out else run_folder(runs, config)
    if is_finished(folder) and not (again or restart):
        result = read_result(folder)
        if others := differences(result, config):
            raise UserError(f"--out {folder} holds another run's result ({'; '.join(others[:3])}"
                            f"{'; …' if len(others) > 3 else ''}): give another folder, or --again to run anew there")
        return result, folder, True
    stop = Stop()
    reporter = None if quiet else RunProgress(f"{config.settings.method} on {config.settings.benchmark}")

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


def demo(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from protocore.bench import figures
    from protocore.bench.tables import summary_table
    from protocore.runs.job import configure

    runs = Path(arguments.runs)
    results, folders = [], []
    for flags in ({"method": "finetune"}, {"method": "er"}, {"method": "protocore"}):
        config = configure({**flags, "benchmark": "digits"})
        result, folder, _ = execute(config, runs, again=True)
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
