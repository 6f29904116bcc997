"""Files of ours: written whole or not at all, read without trust; safetensors and JSON, nothing else.

No read is endless: a file is a regular file of a stated size before a byte of it is taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.errors import DataError, HeldError, UserError, shown

if TYPE_CHECKING:  # a device without torch reads and writes files too
    from torch import Tensor

MOST_JSON = 64 << 20  # bytes of a file of settings or results
MOST_TENSORS = 16 << 30  # bytes of a safetensors file
_PART = re.compile(r"\.(.+)\.[0-9a-f]{32}")  # a file that is being written, or was when its writer died


def serialise(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a memory file: safetensors, with a JSON header."""
    from safetensors.torch import save as to_safetensors

    # An empty mapping is not the same as none: for a memory without tensors it makes a file that no reader takes.
    return to_safetensors({k: v.contiguous() for k, v in tensors.items()}, dict(metadata) if metadata else None)


def write_atomic(path: Path, data: bytes) -> None:
    """All of the data or the old file: never a part of it, whatever happens meanwhile."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); give another path, or make room "
                        "there") from error
    finally:  # after os.replace there is nothing left to remove
        with contextlib.suppress(OSError):
            part.unlink()


def _sync(folder: Path) -> None:
    """The folder's own entries reach the disk, so that a new name survives a loss of power."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove_parts(folder: Path, of: Sequence[str] | None = None) -> None:
    """Remove what killed writers left in a folder, or of these files in it. Only their owner may call this: see
    `hold_folder` and `hold_file`."""
    for path in folder.glob(".*"):
        part = _PART.fullmatch(path.name)
        if part and (of is None or part[1] in of) and path.is_file():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """The folder is ours until the block ends or the process dies; a second holder is told who the first is."""
    try:
        held = _lock(folder / ".lock")
    except _Busy as busy:
        raise HeldError(f"{folder}: {busy} is working in this folder; wait until it has finished, stop it, or give "
                        "another folder with --out") from None
    with held:
        yield


@contextlib.contextmanager
def hold_file(path: Path, patience: float = 0.0, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """A file is ours to change until the block ends or the process dies; reading it needs no lock.

    A second holder waits for so many seconds, `waiting` being told for whom, and then is told who the first is.
    """
    until, told = time.monotonic() + patience, False
    while True:
        try:
            held = _lock(path.with_name(f".{path.name}.lock"))
            break
        except _Busy as busy:
            if time.monotonic() >= until:
                raise HeldError(f"{path}: {busy} is changing this file; wait until it has finished, or stop it"
                                ) from None
            if waiting and not told:
                waiting(str(busy))
            told = True
        time.sleep(0.05)
    with held:
        yield


class _Busy(Exception):
    """Somebody else has the lock: who."""


@contextlib.contextmanager
def _held(path: Path, number: int) -> Iterator[None]:
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds, too, and is nobody's by name
            os.ftruncate(number, 0)
            os.pwrite(number, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            path.unlink()
        os.close(number)  # which gives the lock back


def _lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """A lock by its file, taken now and held within the block. One that its last holder removed meanwhile locks
    nothing: take the next."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise UserError(f"{path.parent}: cannot be written ({error.strerror or error}); give another folder"
                            ) from error
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(number).st_ino:
                return _held(path, number)
        except FileNotFoundError:
            pass
        except OSError:
            holder = os.pread(number, 200, 0).decode("utf-8", "replace").strip() or "another process"
            os.close(number)
            raise _Busy(holder) from None
        os.close(number)


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes; a pipe, a device or a longer file is refused unread."""
    try:
        # Without O_NONBLOCK the opening of a pipe would wait for a writer.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); check its "
                        "permissions") from None
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a device or a socket"
            raise DataError(f"{path}: {kind}, not a file; give the path of a regular file")
        if found.st_size > most:
            raise DataError(f"{path}: {found.st_size:,} bytes, where at most {most:,} are read; give another file")
        with open(number, "rb", closefd=False) as file:
            data = file.read(found.st_size + 1)  # asked for `most`, Python would set that much aside at once
            if len(data) > found.st_size:
                data += file.read(most + 1 - len(data))
    finally:
        os.close(number)
    if len(data) > most:
        raise DataError(f"{path}: grew beyond {most:,} bytes while it was read; give another file")
    return data


def parse_json(data: bytes, name: object) -> Any:
    """JSON of any origin as Python values, or an error that names the file; NaN and Infinity are refused."""
    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not a number of JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # cut short, no text at all, or nested without end
        raise DataError(f"{name}: damaged, not valid JSON ({error}); restore the file or make it again") from None


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    return parse_json(read_bytes(path, most), path)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, or an error that says what is wrong with it."""
    from safetensors import safe_open

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise DataError(f"{path}: a folder, pipe or device, not a file; give the path of a regular file")
        if found.st_size > MOST_TENSORS:
            raise DataError(f"{path}: {found.st_size:,} bytes, where at most {MOST_TENSORS:,} are read")
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except DataError:
        raise
    except Exception as error:  # the library raises its own classes for a header that lies
        raise DataError(f"{path}: not a readable safetensors file ({shown(str(error), 200)}); it may be damaged"
                        ) from None


def tensor_sizes(path: Path) -> dict[str, int]:
    """Bytes of each tensor of a safetensors file, by its header alone."""
    lead = _beginning(path, 8)
    length = int.from_bytes(lead, "little")
    if len(lead) < 8 or length > MOST_JSON:
        raise DataError(f"{path}: not a readable safetensors file; it may be damaged")
    header = parse_json(_beginning(path, 8 + length)[8:], path)
    sizes = {}
    for name, entry in header.items() if isinstance(header, dict) else ():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) and name != "__metadata__" else None
        if isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(n, int) for n in offsets):
            sizes[str(name)] = offsets[1] - offsets[0]
    return sizes


def _beginning(path: Path, count: int) -> bytes:
    """The first bytes of a regular file."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise DataError(f"{path}: not a file; give the path of a regular file")
        return file.read(min(count, os.fstat(number).st_size))
