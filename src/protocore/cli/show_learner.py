"""What `protocore show` says of a learner's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.working import safe

if TYPE_CHECKING:
    from protocore.field.keeper import Keeper
    from protocore.field.shown import Shown

LATEST = 10  # lines of the history


def show_learner(path: Path, as_json: bool, everything: bool, pictures: Path | None) -> int:
    from protocore.field.keeper import Keeper

    keeper = Keeper(path)
    shown = keeper.show()
    if pictures is not None:
        _draw(keeper, pictures)
    if as_json:
        print(json.dumps(shown.to_json()))
    else:
        _tell(keeper, shown, everything)
    if pictures is not None and not as_json:
        print(f"Pictures of the memory: {pictures}")
    return 0


def _draw(keeper: Keeper, path: Path) -> None:
    import torch

    from protocore.bench.grids import exemplar_grid
    from protocore.errors import UserError

    learner = keeper.learner
    stores = [store for store in learner.method.stores() if len(store) and store.images.shape[2] > 1]
    if not stores:
        raise UserError(f"--pictures: the memory of {keeper.path} holds numbers ({learner.method.keeps}), and no "
                        "pictures; leave it out")
    exemplar_grid(torch.cat([store.images for store in stores]).numpy(),
                  torch.cat([store.labels for store in stores]).numpy(), learner.class_names, path,
                  title=f"Exemplars of {keeper.path.name}")


def _tell(keeper: Keeper, shown: Shown, everything: bool) -> None:
    from protocore.cli.terminal import Terminal
    from protocore.config import format_bytes

    console = Terminal()
    budget = f" of {format_bytes(shown.budget)}" if shown.budget else ""
    if shown.method is None:
        print(f"{shown.path}: has learned nothing yet; `protocore learn {keeper.quoted} FOLDER` teaches it")
        return
    print(f"{shown.path}: {shown.method} on {shown.backbone}, pictures of {shown.image_size} x {shown.image_size}")
    if shown.choice:
        print(safe(shown.choice))
    for table in (_classes(shown), _bytes(shown), _history(shown, everything)):
        console.print()
        console.print(table)
    print(f"\n{format_bytes(shown.kept)}{budget} kept to go on learning")


def _table(*titles: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for k, title in enumerate(titles):
        table.add_column(title, justify="right" if title in ("bytes", "pictures", "exemplars", "skipped") else "left",
                         no_wrap=k == 0)
    return table


def _classes(shown: Shown) -> Any:
    from rich.text import Text

    exemplars = any(of.exemplars for of in shown.classes.values())  # many methods keep none
    table = _table("class", "since (UTC)", "pictures", *(["exemplars"] if exemplars else []), "")
    for name, of in shown.classes.items():
        table.add_row(Text(safe(name)), of.since[:16].replace("T", " "), f"{of.pictures:,}",
                      *([f"{of.exemplars:,}"] if exemplars else []), "weak" if of.weak else "")
    return table


def _bytes(shown: Shown) -> Any:
    table = _table("kept", "bytes", "")
    for entry in shown.ledger:
        table.add_row(entry.name, f"{entry.bytes:,}", "apart" if entry.shared else "")
    if not any(entry.kind == "network" for entry in shown.ledger):  # a frozen one is in the ledger
        table.add_row("network", f"{shown.network:,}", "apart")
    table.add_row("names, fingerprints, history, calibration", f"{shown.told:,}", "apart")
    table.add_row("the whole file", f"{shown.file_bytes:,}", "")
    return table


def _history(shown: Shown, everything: bool) -> Any:
    from rich.text import Text

    table = _table("when (UTC)", "what", "version", "pictures", "skipped", "classes")
    for entry in shown.history if everything else shown.history[-LATEST:]:
        names = list(entry.pictures)
        few = names if everything else names[:6]
        table.add_row(entry.when[:16].replace("T", " "), entry.what, entry.version, f"{sum(entry.pictures.values()):,}",
                      f"{entry.skipped:,}", Text(", ".join(map(safe, few)) + (", …" if few != names else "")))
    return table
