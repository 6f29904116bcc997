"""The folder of a run: what its files are called, whether it is finished, whether it is this run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocore.config import Resolved, flag
from protocore.errors import DataError
from protocore.files import hold_folder, remove_parts, write_json
from protocore.runs.result import RESULT, Result, read_result

# They change where and how fast a run goes, not what it is. Threads change the last bits: a run says which it had.
# Forward transfer is measured beside the run, which it does not touch.
BESIDE_THE_POINT = ("data_root", "strict", "threads", "memory_format", "forward_transfer")
NAME_LENGTH = 80  # of the readable part of a folder's name; file systems stop at 255 bytes


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files. The result is written last."""

    path: Path

    @classmethod
    def of(cls, root: Path, config: Resolved) -> RunFolder:
        """Where a run of this configuration lives. Runs that differ in their seed only share the hexadecimal digits."""
        s = config.settings
        left_out = (*BESIDE_THE_POINT, "seed")
        matters = {"settings": {k: v for k, v in asdict(s).items() if k not in left_out},
                   "options": asdict(config.options)}
        canonical = json.dumps(matters, sort_keys=True, separators=(",", ":"))
        digits = hashlib.sha256(canonical.encode()).hexdigest()[:8]
        readable = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{s.method}-{s.benchmark}")[:NAME_LENGTH]
        return cls(root / f"{readable}-{digits}-s{s.seed}")

    @property
    def result(self) -> Path:
        return self.path / RESULT

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def memory(self) -> Path:
        return self.path / "memory.safetensors"

    @property
    def pack(self) -> Path:
        return self.path / "memory.pack"

    @property
    def learner(self) -> Path:
        return self.path / "learner.safetensors"

    @property
    def records(self) -> Path:
        return self.path / "records.safetensors"

    def hold(self) -> AbstractContextManager[None]:
        """The folder is this process's until the block ends; a second one is told who has it."""
        return hold_folder(self.path)

    def tidy(self) -> None:
        """Remove what killed writers left behind; the folder must be held."""
        remove_parts(self.path)

    def write_config(self, config: Resolved) -> None:
        write_json(self.path / "config.json", config.to_json())

    def finished(self) -> Result | None:
        """The result, if what belongs to it is there as it was written; None where the run must be made (again).

        A checkpoint beside it is of a run that was begun anew and is not finished.
        """
        try:
            result = read_result(self.path)
            whole = self.path.is_dir() and not self.checkpoint.exists() and self.sums() == result.files
        except (DataError, OSError):
            return None
        return result if whole else None

    def sums(self) -> dict[str, str]:
        """sha256 of the files that a finished run has beside its result."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in (self.memory, self.pack, self.learner)}


def differences(there: Mapping[str, Any], here: Resolved | Mapping[str, Any]) -> list[str]:
    """Settings and options, in words, that make a stored run another one than this; those of the machine aside.

    `there` has settings and options by name; what an older version did not have counts as equal.
    """
    now = here.to_json() if isinstance(here, Resolved) else here
    told = []
    for part in ("settings", "options"):
        for name, value in now[part].items():
            old = there[part].get(name, value)
            if name not in BESIDE_THE_POINT and old != value:
                told.append(f"{flag(name)} {old} there, {value} now")
    return told
