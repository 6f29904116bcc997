"""Pictures that wait to be learned and the work that was asked for: on disk beside the learner's file, so that a killed
server loses nothing of them."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from protocore.field.document import now
from protocore.field.sources import MOST_TABLE
from protocore.files import read_bytes, read_json, remove_parts, write_atomic, write_json
from protocore.schema import Fields

MOST_PICTURES = 10_000  # that wait
MOST_BYTES = 4 << 30  # of all that wait
MOST_PICTURE = 20 << 20  # bytes of one
_PICTURE = re.compile(r"([0-9a-f]{16})\.[0-9a-f]{64}")
_WAY_OUT = "delete it, and ask for its work again"


@dataclass(frozen=True)
class Order:
    """Work that was asked for: `learn` what waits, or `forget` a class."""

    what: str
    name: str = ""
    when: str = field(default_factory=now)
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    place: int = 0  # in the queue

    @classmethod
    def read(cls, path: Path) -> Order:
        f = Fields(read_json(path), path, _WAY_OUT)
        return cls(f.text("what"), f.text("name"), f.text("when"), f.text("id"), f.whole("place"))


class Full(Exception):
    """Nothing more may wait."""


class Spool:
    """A folder: `KEY.json` names a class, `KEY.SHA256` is a picture of it, `order-ID.json` work that was asked for, and
    `order-ID.csv` lists the pictures that this work has taken.

    A name stands last: a picture is there whole or not at all, and one counts as learned from the moment on at which
    its order is removed.
    """

    def __init__(self, learner: Path) -> None:
        self.folder = learner.with_name(f".{learner.name}.spool")
        self._lock = threading.RLock()
        self._names: dict[str, str] = {}
        self._waiting: dict[str, int] = {}  # file, bytes
        self._taken: dict[str, set[str]] = {}  # files by the order that has them
        self.folder.mkdir(mode=0o700, exist_ok=True)
        remove_parts(self.folder)
        self._look()

    def _look(self) -> None:
        """Where the last server left off."""
        for path in self.folder.glob("part-*"):
            path.unlink()
        for path in self.folder.glob("order-*.csv"):
            if path.with_suffix(".json").exists():
                self._taken[_id(path)] = {file for file, _ in self._rows(path)}
            else:
                self._remove_table(path)
        for path in sorted(self.folder.iterdir()):
            if re.fullmatch(r"[0-9a-f]{16}\.json", path.name):
                self._names[path.stem] = Fields(read_json(path), path, _WAY_OUT).text("name")
        taken = set().union(*self._taken.values())
        for path in self.folder.iterdir():
            found = _PICTURE.fullmatch(path.name)
            if found and found[1] in self._names and path.name not in taken:
                self._waiting[path.name] = path.stat().st_size

    # -- pictures ----------------------------------------------------------------------------------------------

    def part(self) -> Path:
        """Where a picture may be written while it comes in."""
        return self.folder / f"part-{secrets.token_hex(8)}"

    def check_room(self, size: int) -> None:
        with self._lock:
            if len(self._waiting) >= MOST_PICTURES or sum(self._waiting.values()) + size > MOST_BYTES:
                raise Full(f"{len(self._waiting):,} pictures wait already, and no more may (at most {MOST_PICTURES:,}, "
                           f"of {MOST_BYTES >> 30} GB): learn them first")

    def add(self, name: str, part: Path, digest: str) -> bool:
        """A picture that came in waits for the next `learn`; False: it does so already."""
        with self._lock:
            key = _key(name)
            file = f"{key}.{digest}"
            if file in self._waiting or any(file in files for files in self._taken.values()):
                return False
            self.check_room(part.stat().st_size)
            if key not in self._names:
                write_json(self.folder / f"{key}.json", {"name": name})
                self._names[key] = name
            os.replace(part, self.folder / file)
            self._waiting[file] = (self.folder / file).stat().st_size
            return True

    def counts(self) -> dict[str, int]:
        """How many pictures wait, by class; none of a class that has none."""
        with self._lock:
            found: dict[str, int] = {}
            for file in self._waiting:
                name = self._names[file[:16]]
                found[name] = found.get(name, 0) + 1
            return dict(sorted(found.items()))

    def drop(self, name: str) -> int:
        """Pictures of a class that wait are removed."""
        with self._lock:
            gone = [file for file in self._waiting if file.startswith(f"{_key(name)}.")]
            for file in gone:
                del self._waiting[file]
                (self.folder / file).unlink(missing_ok=True)
            self._tidy()
            return len(gone)

    # -- orders ------------------------------------------------------------------------------------------------

    def orders(self) -> list[Order]:
        """What was asked for and is not done, first things first."""
        return sorted((Order.read(path) for path in self.folder.glob("order-*.json")),
                      key=lambda order: (order.place, order.id))

    def put(self, order: Order) -> None:
        write_json(self.folder / f"order-{order.id}.json", asdict(order))

    def take(self, order: Order) -> Path | None:
        """The table of what an order is to learn: all that waits now, or what it took when it was begun before."""
        with self._lock:
            table = self.folder / f"order-{order.id}.csv"
            if order.id not in self._taken:
                if not self._waiting:
                    return None
                text = io.StringIO()
                csv.writer(text).writerows([("file", "label"), *((file, self._names[file[:16]])
                                                                 for file in sorted(self._waiting))])
                write_atomic(table, text.getvalue().encode())
                self._taken[order.id] = set(self._waiting)
                self._waiting.clear()
            return table

    def taken(self) -> set[str]:
        """Classes of the pictures that are being learned."""
        with self._lock:
            keys = {file[:16] for files in self._taken.values() for file in files}
            return {self._names[key] for key in keys & self._names.keys()}

    def done(self, order: Order) -> None:
        """What it took is learned, and removed."""
        with self._lock:
            self._strike(order)
            self._remove_table(self.folder / f"order-{order.id}.csv")
            self._taken.pop(order.id, None)
            self._tidy()

    def failed(self, order: Order) -> None:
        """What it took waits again."""
        with self._lock:
            (self.folder / f"order-{order.id}.csv").unlink(missing_ok=True)
            self._strike(order)
            for file in self._taken.pop(order.id, ()):
                if (path := self.folder / file).exists():
                    self._waiting[file] = path.stat().st_size

    def _strike(self, order: Order) -> None:
        (self.folder / f"order-{order.id}.json").unlink(missing_ok=True)

    def _remove_table(self, table: Path) -> None:
        if table.exists():
            for file, _ in self._rows(table):
                (self.folder / file).unlink(missing_ok=True)
            table.unlink()

    def _rows(self, table: Path) -> Iterator[tuple[str, str]]:
        for row in csv.reader(io.StringIO(read_bytes(table, MOST_TABLE).decode())):
            if len(row) == 2 and _PICTURE.fullmatch(row[0]):
                yield row[0], row[1]

    def _tidy(self) -> None:
        """Names without a picture are forgotten."""
        used = {file[:16] for files in (self._waiting, *self._taken.values()) for file in files}
        for key in self._names.keys() - used:
            (self.folder / f"{key}.json").unlink(missing_ok=True)
            del self._names[key]


def _key(name: str) -> str:
    """A file's name for a class's name, whatever that is."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _id(path: Path) -> str:
    return path.stem.removeprefix("order-")
