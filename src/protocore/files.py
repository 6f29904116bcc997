"""Files of ours: written whole or not at all, read without trust; safetensors and JSON, nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from protocore.errors import DataError, UserError


def serialise(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a memory file: safetensors, with a JSON header."""
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
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); give another path, or make room "
                        "there") from error
    finally:  # after os.replace there is nothing left to remove
        with contextlib.suppress(OSError):
            part.unlink()


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, or an error that says what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except Exception as error:  # the library raises its own classes for a header that lies
        raise DataError(f"{path}: not a readable safetensors file ({error}); it may be damaged") from None
