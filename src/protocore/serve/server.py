"""The server itself: where it listens, who may ask, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from protocore.errors import UserError, shown
from protocore.field.keeper import Keeper
from protocore.files import hold_file
from protocore.serve.guard import LEAST_TOKEN, Guard, is_loopback

MOST_REQUESTS = 64  # at once


def serve(path: Path, host: str, port: int, token: str | None, tell: Callable[[str], None]) -> None:
    """Serve a learner's file until Ctrl-C; `tell` hears the address once it can be opened."""
    try:
        import uvicorn

        from protocore.serve.app import make_app
    except ImportError as error:
        raise UserError(f"serve needs the extra: pip install 'protocore[serve]' ({error})") from None

    path = path.absolute()
    Keeper(path).document  # noqa: B018  # one that is not there or damaged is told now
    token = _token(host, token)
    with contextlib.closing(_listen(host, port)) as listening, hold_file(path.with_name(f".{path.name}.spool")):
        app = Guard(make_app(path), host, token)
        server = uvicorn.Server(uvicorn.Config(
            app, log_level="warning", access_log=False, limit_concurrency=MOST_REQUESTS, timeout_keep_alive=15,
            timeout_graceful_shutdown=3, server_header=False, proxy_headers=False, lifespan="on"))
        where = listening.getsockname()
        name = f"[{where[0]}]" if ":" in where[0] else where[0]
        if where[0] in ("0.0.0.0", "::"):
            name = socket.gethostname()
        tell(f"http://{name}:{where[1]}/" + (f"?token={token}" if token else ""))
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            server.run(sockets=[listening])


def _token(host: str, token: str | None) -> str | None:
    """What strangers must know. This machine alone needs none; another one is never without."""
    if token is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", token):
        raise UserError(f"--token {shown(token)}: only letters, digits, - and _ can stand in an address")
    if token is not None and len(token) < LEAST_TOKEN:
        raise UserError(f"--token has {len(token)} characters, and could be guessed: give {LEAST_TOKEN} or more, or "
                        "leave it out where --host is another than this machine, and one is made")
    return token or (None if is_loopback(host) else secrets.token_urlsafe(24))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(host or "?", port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {shown(host)}: {getattr(error, 'strerror', None) or error}; give an address of this "
                        "machine, as 127.0.0.1") from None
    try:
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        way_out = "give another --port, or 0 for any that is free" if error.errno == errno.EADDRINUSE else \
            "give an address of this machine as --host, and a --port above 1023"
        raise UserError(f"--port {port} of {host}: {error.strerror}; {way_out}") from None
