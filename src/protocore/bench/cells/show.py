"""A grid for people: the plan before it, how it goes on, and what came out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from protocore.bench.cells.cell import Cell
from protocore.bench.cells.engine import Listener, Outcome
from protocore.bench.cells.plan import UNMEASURED, Plan
from protocore.bench.labels import run_labels
from protocore.bench.tables import NONE, exemplar_words, mean_std, new_table
from protocore.config import format_bytes, plural
from protocore.errors import printable
from protocore.runs.result import Result

MOST_LINES = 40  # of a plan in a terminal
MOST_RUNNING = 12  # cells at work that are shown
MOST_NAMED = 6  # runs of which one reason is told
MOST_WHY = 1000  # letters of a reason


def duration(seconds: float) -> str:
    """`8 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for least, unit, word in ((172_800, 86_400, "days"), (5_400, 3_600, "h"), (90, 60, "min")):
        if seconds >= least:
            value = seconds / unit
            return f"{value:.0f} {word}" if word == "min" else f"{value:.1f} {word}"
    return f"{max(seconds, 1):.0f} s"


def plan_table(plan: Plan) -> Table:
    """A row a kind of run: how many, how many are stored, what one costs."""
    table = new_table("Plan")
    for name in ("run", "seeds", "stored", "each", "process", "keeps at most"):
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold", no_wrap=name != "run")
    for kind in plan.kinds[:MOST_LINES]:
        cost = kind.cost
        each = [f"about {duration(cost.seconds)}", format_bytes(cost.process),
                NONE if cost.kept is None else format_bytes(cost.kept)] if cost else [NONE, NONE, NONE]
        table.add_row(escape(kind.name), str(kind.cells), str(kind.stored), *each)
    if len(plan.kinds) > MOST_LINES:
        table.add_row(f"… and {len(plan.kinds) - MOST_LINES} more kinds", *[""] * 5)
    return table


def reasons(plan: Plan) -> list[str]:
    """Why nobody knows what some runs take: a line a reason, with the runs that it holds for."""
    names: dict[str, list[str]] = {}
    for kind in plan.kinds:
        if kind.why and kind.why != UNMEASURED:
            names.setdefault(kind.why, []).append(kind.name)
    return [f"Not known: {', '.join(found[:MOST_NAMED])}"
            f"{f' and {len(found) - MOST_NAMED} more' if len(found) > MOST_NAMED else ''}. {printable(why, MOST_WHY)}"
            for why, found in names.items()]


def plan_words(plan: Plan) -> str:
    """The plan in a line or two."""
    if not plan.todo:
        return f"{plural(plan.runs, 'run')}, all of them stored: nothing to do."
    known = plan.todo - plan.unknown
    words = [f"{plural(plan.runs, 'run')}, {plan.stored} stored, {plan.todo} to do, {plan.workers} at a time"]
    if known:
        left = f"about {duration(plan.seconds)}"
        words.append(left if not plan.unknown else f"{left} for {known} of them, {plan.unknown} not known")
    else:
        words.append("how long is not known")
    if plan.memory:
        words.append(f"about {format_bytes(plan.memory)} of this machine's memory")
    return ", ".join(words) + "."


def grid_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, dict[str, str]]]:
    """Benchmark and row of each kind of run that has results: mean and deviation over its seeds."""
    kinds: dict[tuple[Any, ...], list[Result]] = {}
    for outcome in outcomes:
        if (r := outcome.result) is not None:
            settings = tuple((k, v) for k, v in r.settings.items() if k not in ("seed", "threads", "data_root"))
            kinds.setdefault((settings, tuple(r.options.items())), []).append(r)
    firsts = [results[0] for results in kinds.values()]
    by_benchmark: dict[str, list[Result]] = {}
    for r in firsts:
        by_benchmark.setdefault(r.benchmark, []).append(r)
    labels = {id(r): label for mine in by_benchmark.values() for r, label in zip(mine, run_labels(mine), strict=True)}

    def over(results: list[Result], name: str, told: bool = False) -> str:
        scores = [r.task_incremental if told else r.class_incremental for r in results]
        return mean_std([value for s in scores if (value := getattr(s, name)) is not None])

    rows = []
    for results in kinds.values():
        first = results[0]
        kept = "all data" if first.saw_everything else format_bytes(statistics.fmean(r.bytes_kept for r in results))
        words = exemplar_words(*results)
        label = labels[id(first)]
        rows.append((first.benchmark, {
            "method": label if words == NONE else f"{label} ({words})", "A_T": over(results, "A_T"),
            "Ā": over(results, "A_mean"), "forgetting": over(results, "forgetting"),
            "task-inc. A_T": over(results, "A_T", told=True), "kept": kept, "seeds": str(len(results))}))
    return sorted(rows, key=lambda row: list(by_benchmark).index(row[0]))


def grid_table(outcomes: Sequence[Outcome]) -> Table:
    """What came out: a row a kind of run, the benchmarks one below the other."""
    rows = grid_rows(outcomes)
    names = list(rows[0][1]) if rows else ["method"]
    table = new_table(None)
    for name in names:
        table.add_column({"forgetting": "F", "task-inc. A_T": "told"}.get(name, name), overflow="fold",
                         justify="left" if name == "method" else "right", no_wrap=name != "method")
    before = None
    for benchmark, row in rows:
        if benchmark != before:
            if before is not None:
                table.add_section()
            table.add_row(escape(benchmark), style="bold")
        before = benchmark
        table.add_row(*(escape(row[name]) for name in names))
    table.caption, table.caption_justify = (
        "A_T: accuracy (%) over all classes after the last task; Ā: over those seen so far, mean over the tasks; "
        "F: forgetting; told: A_T where the task of a picture is told; mean ± standard deviation over seeds", "left")
    return table


class Progress(Listener):
    """Cells done, running, failed, and the time left: a view that moves in a terminal, lines elsewhere.

    The time left is that of the plan, by what the finished and running cells took of it.
    """

    def __init__(self, cells: Sequence[Cell], plan: Plan, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.total = len(cells)
        weights = {kind.name: kind.cost.seconds for kind in plan.kinds if kind.cost}
        usual = statistics.fmean(weights.values()) if weights else 1.0
        self.weights = {cell.name: weights.get(cell.name.rpartition("-s")[0], usual) for cell in cells}
        self.guess = plan.seconds if weights and not plan.unknown else None
        self.count = {"stored": 0, "done": 0, "failed": 0, "stopped": 0}
        self.shares: dict[str, float | None] = {}  # of the cells at work; None: it waits for another process
        self.worked = 0.0  # weight of what was finished here
        self.begun = time.monotonic()
        self.live: Live | None = None
        self.note = ""

    def __enter__(self) -> Progress:
        self.begun = time.monotonic()
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True, get_renderable=self.view)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    # -- what the engine says ------------------------------------------------------------------------------

    def begins(self, cell: Cell) -> None:
        self.shares[cell.name] = 0.0
        if self.live is None:
            self._say(f"begins: {cell.name}")

    def goes_on(self, cell: Cell) -> None:
        self.shares[cell.name] = 0.0
        if self.live is None:
            self._say(f"goes on: {cell.name}, from its checkpoint")

    def waits(self, cell: Cell) -> None:
        self.shares[cell.name] = None
        if self.live is None:
            self._say(f"waits: {cell.name}; another process is working at it")

    def share(self, cell: Cell, share: float) -> None:
        self.shares[cell.name] = share

    def ends(self, outcome: Outcome) -> None:
        self.shares.pop(outcome.cell.name, None)
        self.count[outcome.state] += 1
        if outcome.state == "stored" and not outcome.seconds:
            self.weights.pop(outcome.cell.name, None)
            return
        self.worked += self.weights.pop(outcome.cell.name, 0.0)
        said = {"failed": f"failed: {outcome.cell.name}; {outcome.error}; its log: {outcome.log}",
                "stopped": f"stopped: {outcome.cell.name}"}.get(outcome.state, f"{outcome.state}: {outcome.cell.name}")
        if outcome.result is not None:
            said += f", A_T {outcome.result.class_incremental.A_T:.1f}, {duration(outcome.seconds)}"
        self._say(said if self.live is not None and outcome.state == "failed" else f"{said} ({self.words()})")

    def stopping(self) -> None:
        self.note = "stopping: the running cells write their checkpoints; Ctrl-C again kills them"
        self._say(self.note)

    # -- what people see -----------------------------------------------------------------------------------

    def left(self) -> float | None:
        """Seconds to come, once something is known of them."""
        running = sum((share or 0.0) * self.weights.get(name, 0.0) for name, share in self.shares.items())
        worked, rest = self.worked + running, sum(self.weights.values()) - running
        elapsed = time.monotonic() - self.begun
        if worked <= 0 or elapsed < 1:
            return self.guess
        return elapsed * rest / worked

    def words(self) -> str:
        count, over = self.count, sum(self.count.values())
        parts = [f"{count['done'] + count['stored']} of {self.total} done"]
        parts += [f"{count['failed']} failed"] if count["failed"] else []
        left = self.left() if over < self.total else None
        return ", ".join(parts + ([f"about {duration(left)} left"] if left is not None else []))

    def view(self) -> Group:
        """What the terminal shows: a line of counts and a bar for each cell at work."""
        table = Table.grid(padding=(0, 1))
        for name, share in list(self.shares.items())[:MOST_RUNNING]:
            bar = Text("waits for another process") if share is None else ProgressBar(1.0, share, width=30)
            table.add_row(Text(name), bar, Text("" if share is None else f"{100 * share:.0f} %"))
        lines = [Text(f"{self.words()}, {len(self.shares)} running")]
        return Group(*lines, table, *([Text(self.note)] if self.note else []))

    def _say(self, text: str) -> None:
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
