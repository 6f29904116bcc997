"""The API: classes come, are asked about and go; what is too much, damaged or a stranger's is refused."""

from __future__ import annotations

import io
import json
import re
import struct
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import protocore
from field.conftest import Paint
from protocore.field.keeper import Keeper
from protocore.files import hold_file
from protocore.serve.app import make_app
from protocore.serve.view import remembered
from serve.conftest import SMALL, client_of, over, send


def spool_of(keeper: Keeper) -> Path:
    return keeper.path.with_name(f".{keeper.path.name}.spool")


def learned(client: Any) -> dict[str, Any]:
    return over(client, client.post("/api/learn").json()["id"])


def test_two_classes_are_learned_asked_about_shown_and_one_is_forgotten(client: Any, keeper: Keeper,
                                                                        paint: Paint) -> None:
    photos, held = paint("photos", "red", "blue"), paint("held", "red", "blue", each=1)
    before = client.get("/api/learner").json()
    assert (before["method"], before["classes"], before["jobs"]) == (None, [], [])
    assert client.post("/api/learn").status_code == 409
    assert client.post("/api/predict", content=(held / "red" / "0.png").read_bytes()).status_code == 409
    assert send(client, "red", photos / "red") + send(client, "blue/sky", photos / "blue") == [201] * 16
    state = client.get("/api/learner").json()
    assert [(kind["name"], kind["waiting"], kind["since"]) for kind in state["classes"]] == [
        ("blue/sky", 8, None), ("red", 8, None)]
    with hold_file(keeper.path):  # another process is teaching it
        begun = client.post("/api/learn").json()
        until = time.monotonic() + 300
        while not client.get(f"/api/jobs/{begun['id']}").json()["notes"] and time.monotonic() < until:
            time.sleep(0.05)
    job = over(client, begun["id"])
    assert "waiting: process" in job["notes"][0]
    assert (job["state"], job["result"]["new"], job["result"]["skipped"]) == ("done", {"blue/sky": 8, "red": 8}, [])
    assert (job["done"], job["of"]) == (12, 12), "of the last part, which is learning"
    after = client.get("/api/learner").json()
    assert after["version"] != before["version"]
    assert 0 < after["kept"] <= after["budget"] == 16_000
    assert [(kind["pictures"], kind["waiting"]) for kind in after["classes"]] == [(8, 0), (8, 0)]
    assert not list(spool_of(keeper).iterdir()), "what was learned does not stay in the spool"
    assert keeper.test([photos / "red"], name="red").accuracy == 1.0

    for name, colour in (("red", "red"), ("blue/sky", "blue")):
        answer = client.post("/api/predict?top=2", content=(held / colour / "0.png").read_bytes()).json()
        assert answer["classes"][0]["name"] == name
        assert sum(chance["probability"] for chance in answer["classes"]) == pytest.approx(1, abs=1e-4)

    kind = after["classes"][1]
    assert kind["remembered"] == kind["exemplars"] > 0
    store, = keeper.learner.method.stores()
    for number in range(kind["remembered"]):
        answer = client.get(f"/api/classes/red/pictures/{number}.png")
        assert answer.headers["content-type"] == "image/png"
        pixels = np.asarray(Image.open(io.BytesIO(answer.content)))
        assert (pixels.transpose(2, 0, 1) == store.images[store.labels == 1][number].numpy()).all()
    assert client.get(f"/api/classes/red/pictures/{kind['remembered']}.png").status_code == 404

    taken = client.get("/api/file")
    assert taken.content == keeper.path.read_bytes()
    assert "mine.learner" in taken.headers["content-disposition"]
    assert client.delete("/api/classes/green").status_code == 404
    certificate = over(client, client.delete(f"/api/classes/{quote('blue/sky', safe='')}").json()["id"])
    assert certificate["result"]["classes_left"] == 1
    assert [kind["name"] for kind in client.get("/api/learner").json()["classes"]] == ["red"]
    assert list(keeper.show().classes) == ["red"]
    assert b"blue/sky" not in keeper.path.read_bytes()



def test_what_is_no_picture_or_too_much_is_refused_and_leaves_nothing(keeper: Keeper, paint: Paint,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    other, sound = sorted((path.read_bytes() for path in paint("photos", "red", each=2).rglob("*.png")), key=len)
    client, url = TestClient(make_app(keeper.path), base_url="http://127.0.0.1"), "/api/classes/red/pictures"
    for data in (b"", b"no picture", sound[:60], b"<svg xmlns='http://www.w3.org/2000/svg'/>", claims(60_000, 60_000)):
        answer = client.post(url, content=data)
        assert answer.status_code == 415
        assert "no picture that can be read" in answer.json()["detail"]
    monkeypatch.setattr("protocore.serve.app.MOST_PICTURE", len(sound))
    assert client.post(url, content=sound + b"x").status_code == 413
    assert client.post(url, content=iter([sound, b"x"])).status_code == 413, "its length was not said"
    assert client.post(url, content=b"", headers={"content-length": "9" * 30}).status_code == 413
    monkeypatch.setattr("protocore.serve.spool.MOST_PICTURES", 1)
    assert client.post(url, content=sound).json() == {"added": True, "waiting": 1}
    assert client.post(url, content=other).status_code == 507
    assert client.post("/api/predict", content=b"x" * 10**6).status_code == 413
    assert client.post("/api/predict", content=sound).status_code == 409, "asking needs no room, only a learner"
    for name, code in (("%2e%2e", 400), ("a%09b", 400), ("a%0ab", 404), ("%20", 400), ("x" * 201, 422)):
        assert client.post(f"/api/classes/{name}/pictures", content=sound).status_code == code, name
    assert sorted(len(path.name) for path in spool_of(keeper).iterdir()) == [21, 81], "one name and one picture"


def claims(width: int, height: int) -> bytes:
    """The beginning of a PNG that says it is so large."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def test_pictures_wait_once_and_can_be_taken_back(keeper: Keeper, paint: Paint) -> None:
    photos = paint("photos", "red")
    client = TestClient(make_app(keeper.path), base_url="http://127.0.0.1")
    assert send(client, "re\u0301d", photos / "red") == [201] * 8
    again = client.post("/api/classes/r\u00e9d/pictures", content=(photos / "red" / "0.png").read_bytes())
    assert again.json() == {"added": False, "waiting": 8}, "the same name in another spelling"
    assert TestClient(make_app(keeper.path), base_url="http://127.0.0.1").get("/api/learner").json()["classes"][0][
        "waiting"] == 8, "another server finds them"
    assert client.delete("/api/classes/r\u00e9d/pictures").json() == {"dropped": 8}
    assert client.get("/api/learner").json()["classes"] == []
    assert not list(spool_of(keeper).iterdir())


def test_jobs_queue_and_are_asked_for_once(keeper: Keeper, paint: Paint) -> None:
    """Nothing works here: the application was never started."""
    photos = paint("photos", "red", "blue", each=2)
    client = TestClient(make_app(keeper.path), base_url="http://127.0.0.1")
    send(client, "red", photos / "red")
    first = client.post("/api/learn")
    assert (first.status_code, first.json()["state"]) == (202, "queued")
    assert client.post("/api/learn").json() == first.json()
    gone = client.delete("/api/classes/red").json()
    assert client.post("/api/classes/red/pictures", content=b"").status_code == 409, "it is about to be forgotten"
    assert send(client, "blue", photos / "blue") == [201, 201]
    jobs = TestClient(make_app(keeper.path), base_url="http://127.0.0.1").get("/api/learner").json()["jobs"]
    assert [(job["id"], job["job"], job["name"], job["state"]) for job in jobs] == [
        (first.json()["id"], "learn", "", "queued"), (gone["id"], "forget", "red", "queued")], "they are on disk"
    assert client.get("/api/jobs/none").status_code == 404


def test_a_learn_that_fails_says_why_and_its_pictures_wait_again(tmp_path: Path, paint: Paint) -> None:
    keeper = Keeper.new(tmp_path / "small.learner", **SMALL | {"budget": 300})
    photos, before = paint("photos", "red", "blue"), keeper.path.read_bytes()
    with client_of(keeper.path) as client:
        send(client, "red", photos / "red")
        send(client, "blue", photos / "blue")
        job = learned(client)
        assert job["state"] == "failed"
        assert "--budget 300" in job["error"]
        assert str(tmp_path) not in json.dumps(job)
        assert sum(kind["waiting"] for kind in client.get("/api/learner").json()["classes"]) == 16
        assert keeper.path.read_bytes() == before
        keeper.path.unlink()
        keeper.path.write_bytes(before[:-1])
        for url in ("/api/learner", "/api/file"):
            answer = client.get(url)
            assert answer.status_code == 409
            assert "damaged" in answer.json()["detail"]
            assert str(tmp_path) not in answer.text


def test_the_page_asks_nobody_else_and_the_document_describes_every_route(keeper: Keeper) -> None:
    client = TestClient(make_app(keeper.path), base_url="http://127.0.0.1")
    for file in ("", "page.js", "page.css", "icon.svg"):
        text = client.get(f"/{file}").text
        assert len(text) > 100
        assert not set(re.findall(r"(?:https?:)?//[\w.]+\.\w+", text)) - {"http://www.w3.org"}, file
    assert client.get("/app.py").status_code == 404
    assert client.get("/docs").status_code == 404, "its page would load scripts from elsewhere"
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {(method, path) for path, of in paths.items() for method in of} == {
        ("get", "/api/learner"), ("post", "/api/classes/{name}/pictures"), ("delete", "/api/classes/{name}/pictures"),
        ("get", "/api/classes/{name}/pictures/{number}.png"), ("delete", "/api/classes/{name}"), ("post", "/api/learn"),
        ("get", "/api/jobs/{id}"), ("post", "/api/predict"), ("get", "/api/file")}


def test_none_of_the_classes_is_offered_where_its_rate_can_be_promised(keeper: Keeper, paint: Paint) -> None:
    asked = next((paint("held", "red", each=1) / "red").iterdir()).read_bytes()
    for each, enough in ((8, False), (64, True)):
        keeper.learn([paint(f"photos {each}", "red", "blue", "green", each=each)])
        with client_of(keeper.path) as client:
            assert client.get("/api/learner").json()["rejects"] is enough
            answer = client.post("/api/predict?unknown=0.05", content=asked)
        assert answer.status_code == (200 if enough else 409)


def test_a_frozen_networks_memory_is_numbers_and_no_pictures() -> None:
    learner = protocore.Learner("er", (3, 1, 1), spc=2, backbone="mlp", width=8, steps=2, threads=1)
    learner.partial_fit(np.zeros((4, 3, 1, 1), np.uint8), ["a", "a", "b", "b"])
    assert {name: len(few) for name, few in remembered(learner).items()} == {"a": 0, "b": 0}
