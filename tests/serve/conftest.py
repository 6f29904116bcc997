"""Learners that are served: within this process, or by a process of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from fastapi.testclient import TestClient

from field.conftest import TINY, Paint, paint  # noqa: F401  # a fixture
from protocore.field.keeper import Keeper
from protocore.serve.app import make_app
from protocore.serve.guard import Guard

SMALL = TINY | {"image_size": 32, "steps": 12}
Served = Callable[..., Any]


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    """A new learner that trains a small network on small pictures."""
    return Keeper.new(tmp_path / "mine.learner", **SMALL)


@contextmanager
def client_of(path: Path, host: str = "127.0.0.1", token: str | None = None, base: str = "http://127.0.0.1:8765",
              **more: Any) -> Iterator[TestClient]:
    with TestClient(Guard(make_app(path), host, token), base_url=base, follow_redirects=False, **more) as client:
        yield client


@pytest.fixture
def client(keeper: Keeper) -> Iterator[TestClient]:
    with client_of(keeper.path) as client:
        yield client


def send(client: Any, name: str, folder: Path) -> list[int]:
    """The pictures of a folder onto a class; the status codes."""
    return [client.post(f"/api/classes/{name}/pictures", content=path.read_bytes()).status_code
            for path in sorted(folder.iterdir())]


def over(client: Any, id: str, seconds: float = 1200) -> dict[str, Any]:
    """The job once it is done or failed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        job = client.get(f"/api/jobs/{id}").json()
        if job["state"] in ("done", "failed"):
            return job
        time.sleep(0.05)
    raise AssertionError(f"not over after {seconds} s: {job}")


class Server:
    """`protocore serve` as a process of its own."""

    def __init__(self, path: Path, *words: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "protocore", "serve", str(path), "--port", "0", *words],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, self.process.stderr.read() if self.process.stderr else line
        self.url = line.split()[1]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
