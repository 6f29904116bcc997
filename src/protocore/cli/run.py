"""`protocore run`: settings in, a run folder and tables out."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.parser import Parser, number, sort_words
from protocore.config import Settings, convert, flag, kind_of, plural
from protocore.errors import UserError
from protocore.learn.metrics import PEERS
from protocore.ranks import started, way_of
from protocore.seeds import parse_seeds

if TYPE_CHECKING:
    from protocore.runs.result import Result

GROUPS = {
    "data": "data and stream", "memory": "memory", "network": "network", "training": "training", "machine": "machine",
}


def add_run(commands: Any, words: Sequence[str] = ()) -> None:
    """The command, with the options of the method that its words name."""
    run: Parser = commands.add_parser(
        "run", help="run a method on a benchmark", argument_default=argparse.SUPPRESS,
        usage="protocore run [METHOD] [BENCHMARK] [FLAGS]",
        description="Learn a benchmark's tasks one after the other, evaluate after each, store everything in a "
        "folder. The same command again goes on after an interruption, or shows the stored result.",
        epilog="`protocore run METHOD --help` explains a method's own options too. Several processes or GPUs share out "
        "a run that torchrun starts: `torchrun --nproc-per-node 2 -m protocore run METHOD BENCHMARK`.",
    )
    run.add_argument("method", nargs="?", metavar="METHOD", help="see `protocore list methods` (default: protocore)")
    run.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="see `protocore list benchmarks`, or "
                     "folder:PATH (default: digits)")
    run.add_argument("--config", type=Path, metavar="FILE", help="settings from a YAML or TOML file; flags win over it")
    run.add_argument("--like", metavar="RUN", help="take every setting from a stored run")
    run.add_argument("--seeds", type=seeds_in, metavar="LIST", help="one run after the other with these seeds, as in "
                     "0,1,2 or 0..2, and their mean; those that are stored are not run again")
    run.add_argument("--runs", default="runs", metavar="FOLDER", help="folder of run folders (default: runs)")
    run.add_argument("--out", metavar="FOLDER", help="this run's own folder, instead of one named after its settings")
    run.add_argument("--restart", action="store_true", default=False, help="forget an unfinished run's checkpoint")
    run.add_argument("--again", action="store_true", default=False, help="run anew even where a result is stored")
    run.add_argument("--checkpoint-seconds", type=number(0, 10**9), default=30.0, metavar="FLOAT",
                     help="seconds between two checkpoints (default: 30)")
    run.add_argument("--track", action="append", default=[], metavar="NAMES", help="tell trackers as the run goes on: "
                     "tensorboard, wandb, mlflow, or several with commas (metrics.csv is written anyway)")
    run.add_argument("--as", dest="as_peer", choices=PEERS, metavar="PEER", help="forgetting and transfer as others "
                     f"define them, beside ours: {', '.join(PEERS)}")
    run.add_argument("--json", action="store_true", default=False, help="print the result as JSON; a list with --seeds")
    run.add_argument("--quiet", action="store_true", default=False, help="no progress")
    run.add_argument("--no-figures", action="store_true", default=False, help="write no pictures")
    add_flags(run.add_argument_group("run"), Settings, "run", skip=("method", "benchmark"))
    for group, title in GROUPS.items():
        add_flags(run.add_argument_group(title), Settings, group)
    if words and words[0] == "run":
        _add_options(run, words[1:])
    run.set_defaults(do=_run)


def add_flags(group: Any, cls: type, name: str, skip: Sequence[str] = ()) -> None:
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


def _add_options(run: Parser, words: Sequence[str]) -> None:
    """Flags of the method's own options. Which word is the method depends on which flags take a value, and those may
    be the method's: where a flag is not known yet, all methods are asked. No method is loaded where none is needed."""
    known = run.takes()
    found = sort_words(words, known)
    if not found.plain and not found.unknown and not any(word.startswith(("--config", "--like")) for word in words):
        return
    from protocore.methods import METHODS, method_named

    if found.unknown:
        known |= {name: takes_value for m in METHODS.values() for name, takes_value in takes(m).items()}
        found = sort_words(words, known)
        if found.unknown:
            run.error(f"unknown flag {run.known_as(found.unknown[0], known)}")
    method = method_named(found.plain[0] if found.plain else _method_of_files(found.flags) or "protocore")
    if dataclasses.fields(method.Options):
        add_flags(run.add_argument_group(f"options of {method.name}"), method.Options, "method")
    for word in found.flags:
        name = word.partition("=")[0]
        if name not in run.takes():
            owners = ", ".join(m.name for m in METHODS.values() if name in takes(m))
            run.error(f"{name} is not an option of {method.name}; it is one of {owners}")


def takes(method: Any, only: str | None = None) -> dict[str, bool]:
    """The flags of a method's options, or of one of them, and whether a value follows."""
    found = {}
    for field in dataclasses.fields(method.Options):
        if only not in (None, field.name):
            continue
        truth = kind_of(method.Options, field.name)[0] is bool
        found |= {flag(name): not truth for name in ((field.name, f"no_{field.name}") if truth else (field.name,))}
    return found


def _method_of_files(flags: Sequence[str]) -> str | None:
    """The method that --config or --like names; the file wins, as its settings do."""
    given = {name: value for name, _, value in (word.partition("=") for word in flags)}
    method = None
    if "--config" in given:
        from protocore.config import read_config_file

        method = read_config_file(Path(given["--config"])).get("method")
    if method is None and "--like" in given:
        method = _like(given["--like"]).method
    return None if method is None else convert(Settings, "method", method)


def seeds_in(text: str) -> list[int]:
    """A list of seeds, as argparse asks for it."""
    try:
        return parse_seeds(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _like(where: str) -> Result:
    from protocore.runs.result import read_result

    return read_result(Path(where))


_NOT_SETTINGS = ("command", "do", "config", "like", "seeds", "runs", "out", "restart", "again", "checkpoint_seconds",
                 "json", "quiet", "no_figures", "track", "as_peer")


def _run(arguments: argparse.Namespace) -> int:
    from protocore.cli.execute import execute, name_files, tell_notes
    from protocore.runs.configure import configure

    flags = {k: v for k, v in vars(arguments).items() if k not in _NOT_SETTINGS and v is not None}
    like = _like(arguments.like) if hasattr(arguments, "like") else None
    seeds, out = getattr(arguments, "seeds", None), getattr(arguments, "out", None)
    if seeds is not None and ("seed" in flags or out is not None):
        raise UserError("--seeds makes several runs, each with its own seed and folder: leave out --seed and --out "
                        "(--runs says where the folders are)")
    processes = started()[1]
    if like is not None and like.processes != processes and not arguments.quiet:
        print(f"Note: --like {arguments.like} was learned by {plural(like.processes, 'process')}, this is {processes}: "
              f"the last bits may be others; {way_of(like.processes)} keeps them", file=sys.stderr)
    # All are configured before the first is run: a mistake should not wait for its turn.
    configs = [configure(flags if seed is None else flags | {"seed": seed},
                         config_file=getattr(arguments, "config", None), like=like) for seed in seeds or [None]]
    done = [execute(config, Path(arguments.runs), out=out, again=arguments.again, restart=arguments.restart,
                    every=arguments.checkpoint_seconds, quiet=arguments.quiet or arguments.json,
                    figures=not arguments.no_figures, track=arguments.track) for config in configs]
    results = [run.result for run in done]
    if arguments.json:
        documents = [result.to_json() for result in results]
        print(json.dumps(documents[0] if seeds is None else documents))
        return 0
    from protocore.bench.tables import ledger_table, summary_table
    from protocore.cli.terminal import Terminal

    console = Terminal()
    console.print(summary_table(results, mean=seeds is not None, width=console.width))
    console.print()
    if peer := getattr(arguments, "as_peer", None):
        from protocore.bench.costs import peer_table

        console.print(peer_table(results, peer))
        console.print()
    if seeds is None:
        console.print(ledger_table(results[0]))
        console.print()
    for run in done:
        if run.stored or arguments.quiet:  # else they have been said while it ran
            tell_notes(console, run.result)
        if run.stored and seeds is None:
            threads = f" ({plural(run.result.threads, 'thread')})" if run.result.threads else ""
            if run.result.processes > 1:
                threads = f" ({plural(run.result.processes, 'process')})"
            console.print(f"This result was stored already{threads}; --again runs it anew.")
        name_files(console, run.folder, pictures=seeds is None)
    if like and like.precision not in (None, results[0].precision):
        console.print(f"The run that this one is like was computed in {like.precision}, this one in "
                      f"{results[0].precision}: not the same numbers. --precision {like.precision} asks for them, on "
                      "a machine with units for it.")
    return 0
