"""Pictures of one's own, one folder a class, in the sorted order of the folders' names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from protocore.config import plural
from protocore.data.base import Benchmark, Pair
from protocore.data.cache import Kept, keep_decoded
from protocore.data.folders import PICTURES, Files, Skipped, look
from protocore.data.images import ChosenImages, FileImages, ImageSet, file_set, files_digest, listed
from protocore.errors import DataError, printable

Keep = Callable[[ImageSet], Kept]


def folder_benchmark(path: Path, strict: bool) -> Benchmark:
    """What `folder:PATH` stands for; `strict` as `read_folder` takes it."""
    return Benchmark(
        f"pictures in {path}, one folder a class",
        lambda root, size: read_folder(path, size or 32, strict=strict, keep=keep_decoded), 2,
        mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), scaled=True)


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
    skipped = Skipped(path)
    parts = _parts(path, skipped)
    classes = sorted({name for part in parts.values() for name in part})
    rows = [(prefix, name, file, length) for prefix, part in parts.items() for name in classes
            for file, length in part.get(name, [])]
    names = [f"{prefix}{name}/{file}" for prefix, name, file, _ in rows]
    files = [(full, row[3], 0) for full, row in zip(names, rows, strict=True)]
    whole = file_set(path, files, ("all",), size, upright=True)
    kept = keep(whole) if keep else None
    for row, reason in (kept.bad if kept else {}).items():
        skipped.add("unreadable", names[row], reason)
    good = [row for row in range(len(rows)) if kept is None or row not in kept.bad]
    by_class: dict[str, dict[str, list[int]]] = {name: {prefix: [] for prefix in parts} for name in classes}
    for row in good:
        prefix, name, _, _ = rows[row]
        by_class[name][prefix].append(row)
    learn, test = _sides(by_class, list(parts), names, test_fraction, skipped)
    if strict:
        skipped.refuse()
    if not learn:
        raise _no_classes(path, skipped.faults())
    sets = [_chosen(whole, kept, side, names) for side in (learn, test)]
    notes = (*_told(path, sets, list(parts), kept, size), *skipped.lines())
    train, held = (ImageSet(part.images, part.labels, part.class_names, part.digest, notes) for part in sets)
    return train, held


def _no_classes(path: Path, faults: list[str]) -> DataError:
    aside = Skipped(path)
    deeper = [name for name in look(path, aside).folders if _classes(path, f"{name}/", aside)]
    hint = f"; did you mean {path / deeper[0]}?" if deeper else ""
    return DataError(f"{path}: no class folders with pictures; put the pictures of each class into one "
                     f"named after it{hint}" + (f"\n{listed(faults)}" if faults else ""))


def _parts(path: Path, skipped: Skipped) -> dict[str, dict[str, Files]]:
    """Pictures by class, for each part of a split (such as "train/"), or for the folder as a whole ("")."""
    at_top, within = Skipped(path), Skipped(path)
    folders = look(path, at_top).folders
    held = next((name for name in ("test", "val") if name in folders), None)
    train = _classes(path, "train/", within) if "train" in folders else {}
    if not train or (held is None and look(path / "train", Skipped(path)).pictures):  # which is a class called train
        return {"": _classes(path, "", skipped)}
    skipped.items += at_top.items + within.items
    skipped.passed += within.passed
    skipped.passed += [("beside", name) for name in folders if name not in ("train", held)]
    test = _classes(path, f"{held}/", skipped) if held else {}
    return {"train/": train, f"{held}/": test} if test else {"train/": train}


def _classes(path: Path, prefix: str, skipped: Skipped) -> dict[str, Files]:
    """The class folders in path/prefix that have pictures."""
    here = look(path / prefix, skipped)
    skipped.passed += [("loose", f"{prefix}{name}") for name, _ in here.pictures]
    classes = {}
    for name in here.folders:
        found = look(path / prefix / name, skipped)
        skipped.passed += [("other", f"{prefix}{name}/{file}") for file in found.others]
        if found.pictures:
            classes[name] = found.pictures
            skipped.passed += [("nested", f"{prefix}{name}/{inner}") for inner in found.folders]
        else:
            within = "; those in folders within it are not read" if found.folders else ""
            skipped.add("empty", f"{prefix}{name}", f"no pictures ({' '.join(sorted(PICTURES))}){within}")
    return classes


def _sides(by_class: dict[str, dict[str, list[int]]], parts: list[str], names: list[str], test_fraction: float,
           skipped: Skipped) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
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


BENCHMARKS: dict[str, Benchmark] = {}  # none by a fixed name: `folder:PATH` makes one for each path
