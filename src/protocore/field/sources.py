"""What people point at: a folder a class, the pictures of one class, a table of file and label."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocore.config import plural
from protocore.data.folders import Look, Skipped, look
from protocore.data.images import MOST_BYTES
from protocore.data.reading import steers
from protocore.errors import DataError, UserError, shown
from protocore.field.document import PRINT, Skip
from protocore.files import read_bytes

LONGEST_NAME = 200  # characters of a class's name
MOST_TABLE = 64 << 20  # bytes of a CSV file
MOST_DEEP = 32  # folders within folders
BEFORE = "learned before"


@dataclass(frozen=True)
class Picture:
    """A file, and the class that it is said to show ("" where nobody said)."""

    path: Path
    label: str = ""


@dataclass
class Gathered:
    """The pictures, and what was left out."""

    pictures: list[Picture] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)

    def skip(self, path: Path, why: str, label: str = "") -> None:
        self.skipped.append(Skip(str(path), why, label))


def class_name(text: str, where: object) -> str:
    """A class's name in one spelling: what looks the same is the same, whatever system named the folder."""
    name = unicodedata.normalize("NFC", text.strip())
    if not name or len(name) > LONGEST_NAME or steers(name):
        raise UserError(f"{where}: {shown(text)} cannot be the name of a class: give 1 to {LONGEST_NAME} characters "
                        "without line breaks or controls")
    return name


def labelled(sources: Sequence[Path], name: str | None = None) -> Gathered:
    """Pictures with their classes: folders of class folders and tables, or with `name` the pictures of that class."""
    found = Gathered()
    if not sources:
        raise UserError("no pictures were named; give a folder, files, or a CSV file of file,label")
    label = None if name is None else class_name(name, "--class")
    for source in sources:
        if not source.exists():
            raise DataError(f"{source}: there is no such file or folder")
        table = source.suffix.lower() == ".csv"
        if label is not None and table:
            raise UserError(f"{source}: a table says the classes itself; leave out --class, or give pictures")
        if label is not None:
            _take(source, label, found)
        elif table:
            _table(source, found)
        elif source.is_dir():
            _class_folders(source, found)
        else:
            raise UserError(f"{source}: a picture alone has no class; say which with --class NAME, or give a folder "
                            "that has a folder for each class")
    return found


def unlabelled(sources: Sequence[Path]) -> Gathered:
    """Pictures to be looked at: files, and all that lies in folders and below them."""
    found = Gathered()
    for source in sources:
        if source.is_dir():
            for folder in _below(source):
                found.pictures += [Picture(folder / file) for file, _ in _look(folder, found).pictures]
        else:
            found.pictures.append(Picture(source))
    return found


def _below(folder: Path) -> Iterator[Path]:
    yield folder
    for name in look(folder, Skipped(folder)).folders:
        if len(folder.parts) < MOST_DEEP and not (folder / name).is_symlink():  # a link may lead back
            yield from _below(folder / name)


def _take(source: Path, label: str, found: Gathered) -> None:
    """The pictures of one class: a file, or those of a folder."""
    if not source.is_dir():
        found.pictures.append(Picture(source, label))
        return
    here = _look(source, found, label)
    if not here.pictures:
        within = "; those in folders within it are not read" if here.folders else ""
        found.skip(source, f"no pictures in this folder{within}", label)
    for inner in here.folders if here.pictures else ():
        found.skip(source / inner, "a folder within a class's folder", label)
    found.pictures += [Picture(source / file, label) for file, _ in here.pictures]


def _class_folders(source: Path, found: Gathered) -> None:
    here = _look(source, found)
    if not here.folders:
        raise UserError(f"{source}: " + (
            "has pictures but no folders; did you mean --class NAME, for pictures of one class?" if here.pictures else
            "has neither pictures nor folders of them; give a folder that has a folder for each class"))
    before = len(found.pictures)
    for name in here.folders:
        _take(source / name, class_name(name, source / name), found)
    if len(found.pictures) == before:
        deeper = [name for name in here.folders if _holds_classes(source / name)]
        hint = f"; did you mean {source / deeper[0]}?" if deeper else ""
        raise UserError(f"{source}: its folders hold no pictures; give a folder that has a folder of pictures for each "
                        f"class{hint}")
    for file, _ in here.pictures:
        found.skip(source / file, "in no class's folder")


def _holds_classes(folder: Path) -> bool:
    return any(look(folder / name, Skipped(folder / name)).pictures for name in look(folder, Skipped(folder)).folders)


def _look(folder: Path, found: Gathered, label: str = "") -> Look:
    faults = Skipped(folder)
    here = look(folder, faults)
    for _, where, why in faults.items:
        found.skip(folder / where, why, label)
    for file in here.others:
        found.skip(folder / file, "no picture by its name", label)
    return here


def _table(path: Path, found: Gathered) -> None:
    """Rows of file,label; files are relative to the table. A first row that names no file may be the columns' names."""
    try:
        text = read_bytes(path, MOST_TABLE).decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table of file,label ({shown(str(error), 200)}); save it as CSV in UTF-8"
                        ) from None
    before = len(found.pictures)
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        if len(row) != 2:
            hint = "; put a comma between them, and quotes around a name that has one" if number == 1 else ""
            raise DataError(f"{path}: line {number} has {plural(len(row), 'column')} where file,label belong{hint}")
        file = path.parent / row[0]
        if number == 1 and not file.is_file() and row[0].strip().lower() in _HEADS:
            continue
        found.pictures.append(Picture(file, class_name(row[1], f"{path}: line {number}")))
    if len(found.pictures) == before:
        raise DataError(f"{path}: names no picture; give a line of file,label for each")


_HEADS = ("file", "filename", "file_name", "path", "image", "picture")


@dataclass(frozen=True)
class Sorted:
    """Pictures that are to be learned, each with its sha256, and what was left out."""

    pictures: list[Picture]
    hashes: list[str]
    skipped: list[Skip]
    notes: list[str]


def without_doubles(found: Gathered, known: Mapping[str, Collection[bytes]],
                    progress: Callable[[int, int], None]) -> Sorted:
    """Each picture once: of files with one content the first; none that was learned before; none that is said to show
    two classes."""
    first: dict[str, Picture] = {}
    labels: dict[str, set[str]] = {}
    skipped, elsewhere = list(found.skipped), dict[tuple[str, str], list[Path]]()
    for done, picture in enumerate(found.pictures):
        try:
            digest = hashlib.sha256(read_bytes(picture.path, MOST_BYTES)).hexdigest()
        except DataError as error:
            skipped.append(Skip(str(picture.path), str(error).removeprefix(f"{picture.path}: "), picture.label))
            continue
        finally:
            progress(done + 1, len(found.pictures))
        labels.setdefault(digest, set()).add(picture.label)
        if digest in first and picture.label == first[digest].label:
            skipped.append(Skip(str(picture.path), f"the same picture as {first[digest].path}", picture.label))
        elif digest in first:
            skipped.append(Skip(str(picture.path), f"the same picture as {first[digest].path}, for another class",
                                picture.label))
        else:
            first[digest] = picture
    pictures, hashes = [], []
    for digest, picture in first.items():
        mark = bytes.fromhex(digest)[:PRINT]
        if len(labels[digest]) > 1:
            skipped.append(Skip(str(picture.path), f"given for {len(labels[digest])} classes", picture.label))
        elif mark in known.get(picture.label, ()):
            skipped.append(Skip(str(picture.path), BEFORE, picture.label))
        else:
            if other := next((name for name, marks in known.items() if mark in marks), None):
                elsewhere.setdefault((other, picture.label), []).append(picture.path)
            pictures.append(picture)
            hashes.append(digest)
    notes = [f"{plural(len(paths), 'picture')} learned before as {shown(other)}, and now as {shown(label)} too: "
             + str(paths[0]) + (", …" if len(paths) > 1 else "") for (other, label), paths in elsewhere.items()]
    return Sorted(pictures, hashes, skipped, [*look_alikes({picture.label for picture in pictures}, known), *notes])


def look_alikes(named: Collection[str], known: Collection[str]) -> list[str]:
    """What a person should hear of names that are new and hardly differ from others: they are two classes."""
    alike: dict[str, list[str]] = {}
    for name in [*known, *sorted(set(named) - set(known))]:
        alike.setdefault(" ".join(re.split(r"[\s_-]+", name.casefold())), []).append(name)
    return [f"{' and '.join(map(shown, names))} are {len(names)} classes; give them one name if you mean one"
            for names in alike.values() if len(names) > 1 and set(names) - set(known)]
