"""What the readers of data sets share: files that must be there, lines of text, names of classes."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from protocore.errors import DataError, shown
from protocore.files import read_bytes

AGAIN = "delete it and get it again (`protocore data get`)"
MOST_LABELS = 50_000_000
MOST_TEXT = 64 << 20  # bytes of a file of names
MOST_NAME = 1000  # characters of a class name


def missing_data(name: str, wanted: str, where: Path) -> DataError:
    return DataError(f"{name}: looked for {wanted} in {where} and did not find it. Name the folder that "
                     "holds the data by --data-root DIR or the environment variable PROTOCORE_DATA; "
                     f"`protocore data get {name}` downloads it")


def data_folder(root: Path, name: str, *choices: str) -> Path:
    """The last choice below `root`; the earlier ones were looked for already and are named in the error."""
    folder = Path(root) / choices[-1]
    if not folder.is_dir():
        raise missing_data(name, " or ".join(f"{choice}/" for choice in choices), Path(root))
    return folder


def file_length(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path}: missing; the data set is incomplete: delete its folder and get it again")
    return path.stat().st_size


def refuse_label(path: Path, record: int, value: object, limit: int) -> None:
    raise DataError(f"{path}: record {record} has label {shown(value)}, expected 0 to {limit - 1}; "
                    f"the file is damaged: {AGAIN}")


def utf8(raw: bytes, path: Path) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        where = os.fsencode(path).decode("utf-8", "backslashreplace")
        part = raw[max(0, error.start - 20):error.start + 20]
        raise DataError(f"{where}: {part!r} is not UTF-8 text; rename or replace it") from error


def text_lines(path: Path) -> list[str]:
    file_length(path)
    return [line for line in (line.strip() for line in utf8(read_bytes(path, MOST_TEXT), path).split("\n")) if line]


def two_columns(line: str) -> tuple[str, str]:
    first, second = [*line.split("\t"), ""][:2]
    return first, second


def names_in(path: Path, count: int) -> tuple[str, ...]:
    return checked_names(path, text_lines(path), count)


def steers(name: str) -> bool:
    """Whether a name holds controls or line breaks, with which it would steer a terminal that it is printed on."""
    return any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in name)


def checked_names(path: Path, names: Iterable[str], count: int) -> tuple[str, ...]:
    found = tuple(names)
    longest = max((len(name) for name in found), default=0)
    if longest > MOST_NAME:
        raise DataError(f"{path}: a class name of {longest:,} characters, where at most {MOST_NAME} are read")
    if odd := next((name for name in found if steers(name)), None):
        raise DataError(f"{path}: the class name {shown(odd)} holds control characters; {AGAIN}")
    if len(found) != count or len(set(found)) != count:
        raise DataError(f"{path}: {len(found)} names, {len(set(found))} of them different; expected {count}")
    return found
