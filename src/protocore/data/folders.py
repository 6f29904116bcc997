"""Folders of pictures: what lies in one, and what of it cannot be used."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from protocore.data.images import listed
from protocore.data.reading import steers
from protocore.errors import DataError, printable

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff",
                      ".heic", ".heif"})
_LEFT_BEHIND = {"thumbs.db", "desktop.ini", "__macosx"}  # by other systems and archivers
_EXAMPLES = 3  # of each kind that a note names

Files = list[tuple[str, int]]  # name and bytes

_KINDS = {  # what is left out
    "unreadable": ("picture that cannot be read", "pictures that cannot be read"),
    "empty": ("folder without pictures", "folders without pictures"),
    "small": ("class with fewer than two pictures", "classes with fewer than two pictures"),
    "one-sided": ("class that is not on both sides of the split", "classes that are not on both sides of the split"),
    "name": ("name that is not UTF-8", "names that are not UTF-8"),
    "closed": ("folder that cannot be opened", "folders that cannot be opened"),
    "control": ("folder with control characters in its name", "folders with control characters in their names"),
    "link": ("link that leads nowhere", "links that lead nowhere"),
    "archiver": ("folder of an archiver", "folders of an archiver"),
}
_PASSED = {  # what is no part of such a folder, and no fault of it
    "loose": ("picture in no class folder", "pictures in no class folder"),
    "other": ("file that is no picture by its name", "files that are no pictures by their names"),
    "nested": ("folder within a class folder", "folders within class folders"),
    "beside": ("folder beside train/", "folders beside train/"),
}


@dataclass
class Skipped:
    """What is not read: `items` are faults (an error with --strict), `passed` is only told."""

    path: Path
    items: list[tuple[str, str, str]] = field(default_factory=list)  # kind, where, why
    passed: list[tuple[str, str]] = field(default_factory=list)

    def add(self, kind: str, where: str, why: str) -> None:
        self.items.append((kind, where, why))

    def refuse(self) -> None:
        """What --strict does with faults."""
        faults = self.faults()
        if len(faults) == 1:
            raise DataError(f"{self.path / faults[0]}. Mend it, or leave it out without --strict")
        if faults:
            raise DataError(f"{self.path}: {len(faults):,} faults; mend them, or leave them out without --strict:\n"
                            + listed(faults))

    def faults(self) -> list[str]:
        return [f"{where}: {why}" for _, where, why in self.items]

    def lines(self) -> list[str]:
        """One line for each kind, with examples."""
        told = [(_KINDS[kind], f"{where} ({why})") for kind, where, why in self.items]
        return [*_grouped("left out", told), *_grouped("passed over", [(_PASSED[kind], where)
                                                                     for kind, where in self.passed])]


def _grouped(verb: str, told: Iterable[tuple[tuple[str, str], str]]) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for words, what in told:
        groups.setdefault(words, []).append(printable(what, 200))
    return [f"{verb}: {len(group):,} {words[len(group) > 1]}: {'; '.join(group[:_EXAMPLES])}"
            f"{'; …' if len(group) > _EXAMPLES else ''}" for words, group in groups.items()]


@dataclass
class Look:
    """What lies in a folder, sorted by name; hidden files are passed over."""

    folders: list[str] = field(default_factory=list)
    pictures: Files = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def look(folder: Path, skipped: Skipped | None = None) -> Look:
    """Faults go to `skipped`, or are errors where there is none."""
    found, faults = Look(), skipped or Skipped(folder)
    base = "" if folder == faults.path else f"{folder.relative_to(faults.path).as_posix()}/"
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                _sort(entry, found, faults, base)
    except OSError as error:
        if skipped is None:
            raise DataError(f"{folder}: cannot be opened ({error.strerror}); check its permissions") from error
        skipped.add("closed", base or ".", f"{error.strerror}; check its permissions")
    if skipped is None and (broken := [item for item in faults.items if item[0] != "archiver"]):
        raise DataError(f"{folder / broken[0][1]}: {broken[0][2]}; rename or replace it")
    found.folders.sort()
    found.pictures.sort()
    return found


def _sort(entry: os.DirEntry[str], found: Look, faults: Skipped, base: str) -> None:
    name = entry.name
    known = os.path.splitext(name)[1].lower() in PICTURES
    try:
        status = entry.stat()
        mode, length = status.st_mode, status.st_size
    except OSError:  # a link to nothing, or to itself
        mode = length = 0
    if name.startswith(".") or (name.lower() in _LEFT_BEHIND and not stat.S_ISDIR(mode)):
        return
    try:
        name.encode()
    except UnicodeEncodeError:
        plain = os.fsencode(name).decode("utf-8", "backslashreplace")
        faults.add("name", f"{base}{plain}", "its name is not UTF-8 text")
        return
    if stat.S_ISDIR(mode):
        if name.lower() in _LEFT_BEHIND:
            faults.add("archiver", f"{base}{name}", "left behind by an archiver")
        elif steers(name):
            faults.add("control", f"{base}{name}", "its name holds control characters; rename it")
        else:
            found.folders.append(name)
    elif not known and mode:
        found.others.append(name)
    elif not known:
        faults.add("link", f"{base}{name}", "a link that leads nowhere")
    elif stat.S_ISREG(mode):
        found.pictures.append((name, length))
    else:
        faults.add("unreadable", f"{base}{name}", "a broken link, a pipe or a device")


def pictures_in(folder: Path) -> Files:
    """The pictures of a folder that must have some."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; the data set is incomplete: get it again")
    if not (found := look(folder).pictures):
        raise DataError(f"{folder}: no pictures ({' '.join(sorted(PICTURES))}); add some or remove it")
    return found
