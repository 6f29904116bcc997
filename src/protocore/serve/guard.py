"""Who may ask: pages of other origins, names that lead here by a trick, and strangers in the network may not."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LEAST_TOKEN = 16  # characters
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d+)?", re.ASCII)
HEADERS = [
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
     b"media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()")]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Guard:
    """An ASGI application in front of ours. `host` is where it listens; without a token whoever reaches it may ask."""

    app: App
    host: str
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # there are no sockets here
            return await send({"type": "websocket.close"})

        async def sealed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        refused = self._refused(scope, headers)
        if refused is not None:
            return await _answer(sealed, *refused)
        if self.token is not None and not self._may(scope, headers):
            if self._invited(scope):  # the token leaves the address at once, and stays in a cookie
                cookie = f"{self._cookie()}={self.token}; HttpOnly; SameSite=Strict; Path=/; Max-Age=31536000"
                return await _answer(sealed, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
            return await _answer(sealed, 401, "a token is needed: open the address that `protocore serve` printed, or "
                                 "send the header `Authorization: Bearer TOKEN`", [(b"www-authenticate", b"Bearer")])
        await self.app(scope, receive, sealed)

    def _refused(self, scope: Scope, headers: list[tuple[bytes, str]]) -> tuple[int, str] | None:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._known(hosts[0]):
            return 421, "this name is not one of this server's; open the address that `protocore serve` printed"
        for name, value in headers:
            if name == b"origin" and value not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
                return 403, "pages of other origins may not ask here"
            if name == b"sec-fetch-site" and value in ("cross-site", "same-site") and scope["path"] != "/":
                return 403, "pages of other origins may not ask here"
        return None

    def _known(self, host: str) -> bool:
        """Addresses cannot be made to lead elsewhere, names can: so of those only this machine's own."""
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found[1] or found[2]
        if is_loopback(name):
            return True
        if is_loopback(self.host):
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            own = socket.gethostname().lower()
            return name in (self.host.lower(), own, f"{own}.local")

    def _may(self, scope: Scope, headers: list[tuple[bytes, str]]) -> bool:
        for name, value in headers:
            if name == b"authorization" and value.startswith("Bearer ") and self._same(value.removeprefix("Bearer ")):
                return True
            if name == b"cookie":
                try:
                    found = SimpleCookie(value).get(self._cookie())
                except CookieError:
                    continue
                if found is not None and self._same(found.value):
                    return True
        return False

    def _invited(self, scope: Scope) -> bool:
        words = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return scope["path"] == "/" and scope["method"] == "GET" and len(words) == 1 and self._same(words[0])

    def _same(self, word: str) -> bool:
        return self.token is not None and hmac.compare_digest(word.encode("utf-8", "replace"), self.token.encode())

    def _cookie(self) -> str:
        """Servers on other ports of this host have other names for theirs."""
        return f"protocore-{hashlib.sha256((self.token or '').encode()).hexdigest()[:12]}"


async def _answer(send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = json.dumps({"detail": text}).encode() if text else b""
    await send({"type": "http.response.start", "status": status, "headers": [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or ())]})
    await send({"type": "http.response.body", "body": body})
