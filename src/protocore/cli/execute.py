"""What the commands that run something share: the run itself, its pictures, and where its files are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.stop import Stop
from protocore.errors import LostError

if TYPE_CHECKING:
    from protocore.config import Resolved
    from protocore.learn.learner import Learner
    from protocore.runs.result import Result


def tell_notes(console: Any, result: Result) -> None:
    for note in result.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)


def name_files(console: Any, folder: Path, pictures: bool = True) -> None:
    """Where the files of a run are; not broken into lines, so that they can be copied."""
    console.print(f"Run folder: {folder}", soft_wrap=True, markup=False)
    for picture in sorted(folder.glob("*.png")) if pictures else ():
        console.print(f"  {picture}", soft_wrap=True, markup=False)


@dataclass(frozen=True)
class Done:
    """A run that is through; `stored`: it was so already."""

    result: Result
    folder: Path
    stored: bool


def execute(config: Resolved, runs: Path, *, out: str | None = None, again: bool = False, restart: bool = False,
            every: float = 30.0, quiet: bool = False, figures: bool = True, track: Sequence[str] = ()) -> Done:
    """Run, or read a stored result."""
    from protocore.ranks.group import world
    from protocore.runs.folder import RunFolder
    from protocore.runs.job import Interrupted, run, stored
    from protocore.runs.reporters import Quiet, RunProgress
    from protocore.runs.tracking import FILE, tracking_by

    folder = RunFolder(Path(out)) if out else RunFolder.of(runs, config)
    trackers = tracking_by(track).trackers  # a mistake in their names should not wait for a run that is not stored
    if not (again or restart) and (result := stored(config, folder)):
        if trackers:
            print(f"Note: this result was stored already, so {', '.join(t.name for t in trackers)} was told nothing; "
                  f"{folder.path / FILE} has its numbers, and --again runs it anew", file=sys.stderr)
        return Done(result, folder.path, True)
    reporter = Quiet() if quiet else RunProgress(f"{config.settings.method} on {config.settings.benchmark}")

    def draw(learner: Learner, result: Result) -> None:
        if figures:
            _draw(learner, result, folder.path)

    try:
        with Stop(several=world() > 1) as stop, reporter if isinstance(reporter, RunProgress) else nullcontext():
            result = run(config, folder, reporters=[reporter], checkpoint_seconds=every, restart=restart or again,
                         stop=stop.asked, finished=draw, track=track)
    except LostError as error:
        raise LostError(f"{error}; the same command goes on from the checkpoint in {folder.path}",
                        aloud=error.aloud) from None
    except Interrupted:
        said = " without --again" if again else " without --restart" if restart else ""
        print(f"protocore: stopped; the checkpoint is in {folder.path}, and the same command{said} goes on from there",
              file=sys.stderr)
        raise SystemExit(130) from None
    return Done(result, folder.path, False)


def _draw(learner: Learner, result: Result, folder: Path) -> None:
    from protocore.bench import figures
    from protocore.bench.condensation import condensation_figure
    from protocore.bench.grids import exemplar_grid

    figures.accuracy_curves([result], folder / "accuracy.png")
    figures.matrix_heatmap(result, folder / "matrix.png")
    names = [str(name) for name in learner.classes_]
    if "steps" in (records := learner.method.records()):
        condensation_figure({k: v.numpy() for k, v in records.items()}, folder / "condensation.png", names)
    for store in learner.method.stores():
        if len(store):
            name = store.name.replace(" ", "-")
            exemplar_grid(store.images.numpy(), store.labels.numpy(), names, folder / f"{name}.png",
                          title=f"{store.name} of {result.method}")
