"""A server that is killed while it learns, one that is stopped by Ctrl-C, and the one after them: nothing is lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from field.conftest import Paint
from protocore.field.keeper import Keeper
from serve.conftest import SMALL, Server, over, send


def learning(client: Any, seconds: float = 1200) -> dict[str, Any]:
    """The job, once its first steps are done."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        job = client.get("/api/learner").json()["jobs"][-1]
        if job["part"] == "learning":
            return job
        assert job["state"] in ("queued", "running"), job
        time.sleep(0.02)
    pytest.fail(f"it never began to learn: {job}")


def test_a_killed_server_and_a_stopped_one_lose_nothing(tmp_path: Path, paint: Paint) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", **SMALL | {"steps": 4000})
    photos, before = paint("photos", "red", "blue", "green", each=6), keeper.path.read_bytes()
    with Server(keeper.path) as server, httpx2.Client(base_url=server.url, timeout=120) as client:
        assert send(client, "red", photos / "red") + send(client, "blue", photos / "blue") == [201] * 12
        id = client.post("/api/learn").json()["id"]
        learning(client)
        assert send(client, "green", photos / "green") == [201] * 6, "the page is alive while it learns"
        server.process.kill()
        server.process.wait()
    assert keeper.path.read_bytes() == before, "the file is as it was"
    with Server(keeper.path) as server, httpx2.Client(base_url=server.url, timeout=120) as client:
        state = client.get("/api/learner").json()
        assert [(kind["name"], kind["waiting"]) for kind in state["classes"]] == [("blue", 0), ("green", 6), ("red", 0)]
        assert [job["id"] for job in state["jobs"]] == [id], "the job goes on by itself"
        assert any("going on where" in note for note in learning(client)["notes"])
        begun = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        _, errors = server.process.communicate(timeout=120)
        assert server.process.returncode == 0, errors
        assert "Traceback" not in errors
        assert time.monotonic() - begun < 60
    assert keeper.path.read_bytes() == before
    with Server(keeper.path) as server, httpx2.Client(base_url=server.url, timeout=120) as client:
        done = over(client, id)
        assert (done["state"], done["result"]["resumed"]) == ("done", True)
        assert done["result"]["new"] == {"blue": 6, "red": 6}
        waiting = {kind["name"]: kind["waiting"] for kind in client.get("/api/learner").json()["classes"]}
        assert waiting == {"blue": 0, "red": 0, "green": 6}
        assert client.delete("/api/classes/green/pictures").json() == {"dropped": 6}
    assert {name: of.pictures for name, of in keeper.show().classes.items()} == {"blue": 6, "red": 6}
    left = {path.name for path in tmp_path.iterdir()} - {"..mine.learner.spool.lock"}
    assert left == {"mine.learner", ".mine.learner.spool", "photos"}, "no part, no checkpoint"
    assert not list((tmp_path / ".mine.learner.spool").iterdir())


def test_words_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from protocore.cli import main
    from protocore.files import hold_file

    def fails(*words: str) -> str:
        assert main(["serve", *words]) == 2
        return capsys.readouterr().err

    path = str(tmp_path / "mine.learner")
    assert "make one with `protocore new" in fails(path)
    Keeper.new(path, **SMALL)
    assert "could be guessed" in fails(path, "--token", "short")
    assert "--port: 70000 must be" in fails(path, "--port", "70000")
    assert "--host 'no such host'" in fails(path, "--host", "no such host")
    assert "--port 0 of 192.0.2.1" in fails(path, "--host", "192.0.2.1", "--port", "0")
    with hold_file(tmp_path / ".mine.learner.spool"):
        assert "process" in fails(path, "--port", "0"), "one server a file"
