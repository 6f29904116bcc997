"""Who may ask, and who may not."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from fastapi.testclient import TestClient

from protocore.errors import UserError
from protocore.field.keeper import Keeper
from protocore.serve.app import make_app
from protocore.serve.guard import Guard, is_loopback
from protocore.serve.server import _token

TOKEN = "a-token-of-24-characters"


@pytest.fixture
def app(keeper: Keeper) -> Any:
    return make_app(keeper.path)


def ask(app: Any, host: str = "127.0.0.1", token: str | None = None, url: str = "/api/learner", method: str = "GET",
        **headers: str) -> Any:
    client = TestClient(Guard(app, host, token), base_url="http://127.0.0.1", follow_redirects=False)
    return client.request(method, url, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(("listens", "asked", "code"), [
    ("127.0.0.1", "127.0.0.1:8765", 200), ("127.0.0.1", "localhost:1", 200), ("::1", "[::1]:8765", 200),
    ("127.0.0.1", "LOCALHOST", 200), ("127.0.0.1", "evil.example", 421), ("127.0.0.1", "localhost.evil.example", 421),
    ("127.0.0.1", "192.168.1.5", 421), ("127.0.0.1", "127.0.0.1.evil.example", 421), ("127.0.0.1", "", 421),
    ("127.0.0.1", "[::1", 421), ("127.0.0.1", "evil.example@127.0.0.1", 421), ("0.0.0.0", "192.168.1.5:8765", 200),
    ("0.0.0.0", "evil.example", 421), ("0.0.0.0", socket.gethostname(), 200), ("my.host", "my.host:80", 200)])
def test_a_name_that_was_led_here_is_refused(app: Any, listens: str, asked: str, code: int) -> None:
    assert ask(app, listens, Host=asked).status_code == code


@pytest.mark.parametrize(("headers", "code"), [
    ({"Origin": "http://127.0.0.1"}, 409), ({}, 409), ({"Sec-Fetch-Site": "same-origin"}, 409),
    ({"Sec-Fetch-Site": "none"}, 409), ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
    ({"Origin": "http://127.0.0.1:9999"}, 403), ({"Origin": "http://127.0.0.1.evil.example"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403)])
def test_pages_of_other_origins_may_not_ask(app: Any, headers: dict[str, str], code: int) -> None:
    assert ask(app, url="/api/learn", method="POST", **headers).status_code == code  # 409: it got through
    if "Sec-Fetch-Site" in headers:
        assert ask(app, url="/", **headers).status_code == 200, "a link from elsewhere may lead to the page"


def test_with_a_token_nobody_asks_without_it(app: Any) -> None:
    for url in ("/", "/api/learner", "/api/openapi.json", "/page.js", "/?token=wrong", f"/api/learner?token={TOKEN}"):
        answer = ask(app, token=TOKEN, url=url)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    for words in ("Bearer wrong", f"Basic {TOKEN}", "Bearer ", f"Bearer {TOKEN}x", "Bearer"):
        assert ask(app, token=TOKEN, Authorization=words).status_code == 401
    assert ask(app, token=TOKEN, Authorization=f"Bearer {TOKEN}").status_code == 200
    invited = ask(app, token=TOKEN, url=f"/?token={TOKEN}")
    assert (invited.status_code, invited.headers["location"]) == (303, "/"), "the token leaves the address"
    cookie = invited.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(app, token=TOKEN, Cookie=cookie.partition(";")[0]).status_code == 200
    assert ask(app, token=TOKEN, Cookie=cookie.partition("=")[0] + "=wrong").status_code == 401
    assert ask(app, token=TOKEN, Authorization=f"Bearer {TOKEN}", Host="evil.example").status_code == 421
    assert ask(app, token=TOKEN, Authorization=f"Bearer {TOKEN}", Origin="http://evil.example").status_code == 403


def test_every_answer_forbids_the_page_to_ask_elsewhere(app: Any) -> None:
    for url in ("/", "/api/learner", "/nowhere", "/api/classes/x/pictures/0.png"):
        headers = ask(app, url=url).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_sockets_are_closed(app: Any) -> None:
    from starlette.websockets import WebSocketDisconnect

    client = TestClient(Guard(app, "127.0.0.1", None), base_url="http://127.0.0.1")
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/learner"):
        pytest.fail("it was taken")


def test_another_host_is_never_without_a_token() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost", "0.0.0.0", "::", "a.b", "")] \
        == [True, True, True, True, False, False, False, False]
    assert _token("127.0.0.1", None) is None
    assert _token("127.0.0.1", TOKEN) == TOKEN
    made = {_token("0.0.0.0", None) for _ in range(50)}
    assert len(made) == 50
    assert min(len(token or "") for token in made) >= 32
    with pytest.raises(UserError, match="could be guessed"):
        _token("0.0.0.0", "short")
    with pytest.raises(UserError, match="only letters"):
        _token("127.0.0.1", "sixteen characters; and more")
