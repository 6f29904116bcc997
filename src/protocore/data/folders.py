"""Readers of picture files in folders. Classes are in the sorted order of the folder names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protocore.config import plural
from protocore.data.cache import Kept
from protocore.data.images import ChosenImages, FileImages, ImageSet, file_set, files_digest, listed
from protocore.data.reading import Pair, checked_names, data_folder, missing_data, text_lines, two_columns
from protocore.errors import DataError, printable

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"})
_LEFT_BEHIND = {"thumbs.db", "desktop.ini", "__macosx"}  # by other systems and archivers
_EXAMPLES = 3  # of each kind that a note names

Files = list[tuple[str, int]]  # name and bytes
Keep = Callable[[ImageSet], Kept]


def read_tiny_imagenet(root: Path) -> Pair:
    """TinyImageNet, 200 classes at 64x64; the official validation set is the test set."""
    base = data_folder(root, "tinyimagenet", "tiny-imagenet-200")
    wnids = sorted(text_lines(base / "wnids.txt"))
    number = {wnid: label for label, wnid in enumerate(wnids)}
    train = [(f"train/{wnid}/images/{name}", length, label) for wnid, label in number.items()
             for name, length in _pictures(base / "train" / wnid / "images")]
    notes = base / "val" / "val_annotations.txt"
    lengths = dict(_pictures(base / "val" / "images"))
    test = []
    for line_number, line in enumerate(text_lines(notes), 1):
        name, wnid = two_columns(line)
        if wnid not in number or name not in lengths:
            raise DataError(f"{notes}: line {line_number} gives {name!r} the class {wnid!r}; expected a "
                            "picture of val/images, not yet named, and a class of wnids.txt")
        test.append((f"val/images/{name}", lengths.pop(name), number[wnid]))
    if lengths:
        raise DataError(f"{notes}: no class for {len(lengths)} pictures of val/images, {min(lengths)} first")
    words = base / "words.txt"
    known = dict(two_columns(line) for line in text_lines(words)) if words.is_file() else {}
    texts = (f"{wnid} {known.get(wnid, '')}".strip() for wnid in wnids)
    names = checked_names(base / "wnids.txt", texts, len(wnids))
    return file_set(base, train, names, 64), file_set(base, test, names, 64)


def read_imagenet(root: Path, size: int = 224) -> Pair:
    """imagenet/train/WNID/*.JPEG and imagenet/val/WNID/*.JPEG; the validation set is the test set.

    Its 140 GB are not read through at every start: names and lengths of the files identify it.
    """
    base = data_folder(root, "imagenet", "imagenet")
    folders: dict[str, list[str]] = {}
    for part in ("train", "val"):
        if not (base / part).is_dir():
            raise missing_data("imagenet", f"{part}/WNID/*.JPEG", base)
        folders[part] = _look(base / part).folders
        if not folders[part]:
            raise DataError(f"{base / part}: no class folders; expected {part}/WNID/*.JPEG. The flat "
                            "validation folder of ILSVRC is not read: move each picture into the folder of "
                            "its class")
    if odd := sorted(set(folders["train"]) ^ set(folders["val"])):
        raise DataError(f"{base}: train/ and val/ must have the same classes; {len(odd)} are in only one of "
                        f"them, {odd[0]!r} first")
    train, test = (file_set(base, [(f"{part}/{name}/{file}", length, label)
                                   for label, name in enumerate(names)
                                   for file, length in _pictures(base / part / name)],
                            names, size, hashed=False) for part, names in folders.items())
    return train, test


def read_folder(path: Path, size: int, test_fraction: float = 0.2, *, strict: bool = False,
                keep: Keep | None = None) -> Pair:
    """Your own pictures, one folder a class.

    Where `path` has train/ and test/ (or val/) these are the split. Otherwise (train/ alone is taken for the whole) a
    hash of "class/file" picks about `test_fraction` of each class for the test set, so adding pictures leaves the
    others on their side. Only where the hashes would leave one side of a class empty does that side get the picture
    next in line.

    `keep` decodes all pictures, which finds the unreadable ones. What cannot be used is left out and named in the
    notes; with `strict` it is an error, which lists it all.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; give one that has a folder of pictures for each class")
    if size < 1 or not 0 < test_fraction < 1:
        raise DataError("pictures need a size of at least 1 and a test fraction between 0 and 1, "
                        f"got {size} and {test_fraction}")
    skipped = _Skipped(path)
    parts = _parts(path, skipped)
    classes = sorted({name for part in parts.values() for name in part})
    rows = [(prefix, name, file, length) for prefix, part in parts.items() for name in classes
            for file, length in part.get(name, [])]
    names = [f"{prefix}{name}/{file}" for prefix, name, file, _ in rows]
    whole = file_set(path, [(full, row[3], 0) for full, row in zip(names, rows, strict=True)], ("all",), size)
    kept = keep(whole) if keep else None
    for row, reason in (kept.bad if kept else {}).items():
        skipped.add("unreadable", names[row], reason)
    good = [row for row in range(len(rows)) if kept is None or row not in kept.bad]
    by_class: dict[str, dict[str, list[int]]] = {name: {prefix: [] for prefix in parts} for name in classes}
    for row in good:
        prefix, name, _, _ = rows[row]
        by_class[name][prefix].append(row)
    learn, test = _sides(by_class, list(parts), names, test_fraction, skipped)
    skipped.check(strict, list(learn))
    sets = [_chosen(whole, kept, side, names) for side in (learn, test)]
    notes = (*_told(path, sets, list(parts), kept, size), *skipped.lines())
    train, held = (ImageSet(part.images, part.labels, part.class_names, part.digest, notes) for part in sets)
    return train, held


def _parts(path: Path, skipped: _Skipped) -> dict[str, dict[str, Files]]:
    """Pictures by class, for each part of a split (such as "train/"), or for the folder as a whole ("")."""
    at_top, within = _Skipped(path), _Skipped(path)
    folders = _look(path, at_top).folders
    held = next((name for name in ("test", "val") if name in folders), None)
    train = _classes(path, "train/", within) if "train" in folders else {}
    if not train or (held is None and _look(path / "train", _Skipped(path)).pictures):  # which is a class called train
        return {"": _classes(path, "", skipped)}
    skipped.items += at_top.items + within.items
    skipped.passed += within.passed
    skipped.passed += [("beside", name) for name in folders if name not in ("train", held)]
    test = _classes(path, f"{held}/", skipped) if held else {}
    return {"train/": train, f"{held}/": test} if test else {"train/": train}


def _classes(path: Path, prefix: str, skipped: _Skipped) -> dict[str, Files]:
    """The class folders in path/prefix that have pictures."""
    here = _look(path / prefix, skipped)
    skipped.passed += [("loose", f"{prefix}{name}") for name, _ in here.pictures]
    classes = {}
    for name in here.folders:
        found = _look(path / prefix / name, skipped)
        skipped.passed += [("other", f"{prefix}{name}/{file}") for file in found.others]
        if found.pictures:
            classes[name] = found.pictures
            skipped.passed += [("nested", f"{prefix}{name}/{inner}") for inner in found.folders]
        else:
            within = "; those in folders within it are not read" if found.folders else ""
            skipped.add("empty", f"{prefix}{name}", f"no pictures ({' '.join(sorted(PICTURES))}){within}")
    return classes


def _sides(by_class: dict[str, dict[str, list[int]]], parts: list[str], names: list[str], test_fraction: float,
           skipped: _Skipped) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Rows to learn from and rows to test on, by class."""
    learn: dict[str, list[int]] = {}
    test: dict[str, list[int]] = {}
    for name, of_part in by_class.items():
        if len(parts) == 2:
            first, second = of_part.values()
            if first and second:
                learn[name], test[name] = first, second
            else:
                skipped.add("one-sided", name, f"pictures in {parts[0] if first else parts[1]} only"
                            if first or second else "no readable picture")
            continue
        rows = of_part[parts[0]]
        if len(rows) < 2:
            skipped.add("small", name, f"{len(rows)} {'picture' if len(rows) == 1 else 'readable pictures'}; a class "
                        "needs at least 2, one to learn from and one to test on")
            continue
        share = {row: _share(names[row].removeprefix(parts[0])) for row in rows}
        rows = sorted(rows, key=lambda row: (share[row], names[row]))
        cut = min(max(sum(share[row] < test_fraction for row in rows), 1), len(rows) - 1)
        test[name], learn[name] = sorted(rows[:cut]), sorted(rows[cut:])
    return learn, test


def _share(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def _chosen(whole: ImageSet, kept: Kept | None, side: dict[str, list[int]], names: list[str]) -> ImageSet:
    rows = [(row, label) for label, chosen in enumerate(side.values()) for row in chosen]
    assert isinstance(whole.images, FileImages)
    hashes = whole.images.hashes
    images = ChosenImages(kept.images if kept else whole.images, [row for row, _ in rows])
    digest = files_digest((names[row], hashes[row], label) for row, label in rows)
    return ImageSet(images, np.array([label for _, label in rows], np.int64), tuple(side), digest)


def _told(path: Path, sets: list[ImageSet], parts: list[str], kept: Kept | None, size: int) -> list[str]:
    train, test = (len(part.images) for part in sets)
    how = f"those of {parts[1]}" if len(parts) == 2 else "chosen by a hash of their names"
    notes = [f"{path}: {plural(train + test, 'picture')} of "
             f"{plural(len(sets[0].class_names), 'class')}; {train:,} to learn from, {test:,} held out to "
             f"test on ({how})"]
    if kept:
        sizes = dict.fromkeys(f"{width} x {height}" for width, height in (kept.smallest, kept.largest))
        cut = f"; {kept.cut:,} were not square: scaled by the shorter side, then the middle was cut out"
        notes.append(f"pictures of {' to '.join(sizes)} pixels became {size} x {size}{cut if kept.cut else ''}")
    return [printable(note, 400) for note in notes]


_KINDS = {  # what is left out
    "unreadable": ("picture that cannot be read", "pictures that cannot be read"),
    "empty": ("folder without pictures", "folders without pictures"),
    "small": ("class with fewer than two pictures", "classes with fewer than two pictures"),
    "one-sided": ("class that is not on both sides of the split", "classes that are not on both sides of the split"),
    "name": ("name that is not UTF-8", "names that are not UTF-8"),
    "closed": ("folder that cannot be opened", "folders that cannot be opened"),
    "archiver": ("folder of an archiver", "folders of an archiver"),
}
_PASSED = {  # what is no part of such a folder, and no fault of it
    "loose": ("picture in no class folder", "pictures in no class folder"),
    "other": ("file that is no picture by its name", "files that are no pictures by their names"),
    "nested": ("folder within a class folder", "folders within class folders"),
    "beside": ("folder beside train/", "folders beside train/"),
}


@dataclass
class _Skipped:
    """What is not read: `items` are faults (an error with --strict), `passed` is only told."""

    path: Path
    items: list[tuple[str, str, str]] = field(default_factory=list)  # kind, where, why
    passed: list[tuple[str, str]] = field(default_factory=list)

    def add(self, kind: str, where: str, why: str) -> None:
        self.items.append((kind, where, why))

    def check(self, strict: bool, classes: list[str]) -> None:
        faults = [f"{where}: {why}" for _, where, why in self.items]
        if strict and len(faults) == 1:
            raise DataError(f"{self.path / faults[0]}. Mend it, or leave it out without --strict")
        if strict and faults:
            raise DataError(f"{self.path}: {len(faults):,} faults; mend them, or leave them out without --strict:\n"
                            + listed(faults))
        if not classes:
            aside = _Skipped(self.path)
            deeper = [name for name in _look(self.path, aside).folders if _classes(self.path, f"{name}/", aside)]
            hint = f"; did you mean {self.path / deeper[0]}?" if deeper else ""
            raise DataError(f"{self.path}: no class folders with pictures; put the pictures of each class into one "
                            f"named after it{hint}" + (f"\n{listed(faults)}" if faults else ""))

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
class _Look:
    """What lies in a folder, sorted by name; hidden files are passed over."""

    folders: list[str] = field(default_factory=list)
    pictures: Files = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def _look(folder: Path, skipped: _Skipped | None = None) -> _Look:
    """Faults go to `skipped`, or are errors where there is none."""
    found, faults = _Look(), skipped or _Skipped(folder)
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


def _sort(entry: os.DirEntry[str], found: _Look, faults: _Skipped, base: str) -> None:
    name = entry.name
    known = os.path.splitext(name)[1].lower() in PICTURES
    if name.startswith(".") or (name.lower() in _LEFT_BEHIND and not entry.is_dir()):
        return
    try:
        name.encode()
    except UnicodeEncodeError:
        plain = os.fsencode(name).decode("utf-8", "backslashreplace")
        faults.add("name", f"{base}{plain}", "its name is not UTF-8 text")
        return
    if entry.is_dir():
        if name.lower() in _LEFT_BEHIND:
            faults.add("archiver", f"{base}{name}", "left behind by an archiver")
        else:
            found.folders.append(name)
    elif not known:
        found.others.append(name)
    elif entry.is_file():
        found.pictures.append((name, entry.stat().st_size))
    else:
        faults.add("unreadable", f"{base}{name}", "a broken link, a pipe or a device")


def _pictures(folder: Path) -> Files:
    """The pictures of a folder that must have some."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; the data set is incomplete: get it again")
    if not (found := _look(folder).pictures):
        raise DataError(f"{folder}: no pictures ({' '.join(sorted(PICTURES))}); add some or remove it")
    return found
