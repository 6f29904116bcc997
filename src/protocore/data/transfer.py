"""Bringing one published file here: resumed where it stopped, checked when it is whole, given up when it never ends."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from protocore.data.base import Download
from protocore.errors import DataError, printable, shown

TIMEOUT = 30.0  # seconds without a byte
RETRIES = 4  # failures in a row, none of which brought a byte
PAUSE = 1.0  # seconds before the first retry; doubles
SLOWEST = 1000  # bytes a second, on average over
PATIENCE = 60.0  # these seconds
_BLOCK = 1 << 16

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all


def download(url: str, target: Path, file: Download, progress: Progress | None) -> None:
    """Bring `file` to `target`, complete and verified, by way of FILE.part."""
    part = target.with_name(f"{file.name}.part")
    if target.is_file() and _mismatch(target, file) is None:
        return
    if os.path.lexists(part) and (part.is_symlink() or not part.is_file() or part.stat().st_nlink > 1):
        raise DataError(f"{part}: a link, or no regular file, and a download never writes through one; remove it and "
                        "run the same command again")
    resumed = part.exists()
    _transfer(url + file.name, part, file, progress)
    wrong = _mismatch(part, file)
    if wrong and resumed:  # what was here may be of another file: once more from the start
        part.unlink()
        _transfer(url + file.name, part, file, progress)
        wrong = _mismatch(part, file)
    if wrong:
        part.unlink()
        raise DataError(f"{url}{file.name}: {wrong}; the download was thrown away. Try again or elsewhere")
    os.replace(part, target)


def _mismatch(path: Path, file: Download) -> str | None:
    size = path.stat().st_size
    if size != file.size:
        return f"expected {file.size} bytes, met {size}"
    if file.checksum is None:
        return None
    kind, wanted = file.checksum.split(":")
    with open(path, "rb") as stream:
        met = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    return None if met == wanted else f"expected {kind} {wanted}, met {met}"


class _SlowError(Exception):
    """The server brings too little; it would hold us for ever."""


@dataclass
class _Pace:
    """Bytes met since a moment; asked again and again, whatever number of connections they came by."""

    since: float = field(default_factory=time.monotonic)
    met: int = 0

    def add(self, count: int) -> None:
        self.met += count
        passed = time.monotonic() - self.since
        if passed >= PATIENCE:
            if self.met < SLOWEST * passed:
                raise _SlowError(f"only {self.met:,} bytes in {passed:.0f} seconds")
            self.since, self.met = time.monotonic(), 0


def _transfer(url: str, part: Path, file: Download, progress: Progress | None) -> None:
    """Fill `part` up to the known size, resuming after every break that brought something."""
    failures = best = 0
    pace = _Pace()
    while (have := _length(part)) < file.size:
        slow = False
        try:
            _request(url, part, have, file, progress, pace)
            reason = "the connection ended early"
            pace.add(0)
        except urllib.error.HTTPError as error:
            if error.code == 416 and have:
                part.unlink()
            elif error.code < 500:
                raise DataError(f"{url}: the server answers {error.code}; try another server") from error
            reason = f"the server answers {error.code}"
        except _SlowError as error:
            slow, reason = True, str(error)
        except (OSError, http.client.HTTPException) as error:
            reason = " ".join(printable(str(error), 200).split())  # which may quote the server
        now = _length(part)
        failures = 0 if now > max(best, have) else failures + 1
        best = max(best, now)
        if slow or failures > RETRIES:
            raise DataError(f"{url}: {reason}; {now} of {file.size} bytes are here. Run the same command "
                            "again to go on from there")
        if now != file.size and failures:
            time.sleep(PAUSE * 2 ** (failures - 1))


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _request(url: str, part: Path, have: int, file: Download, progress: Progress | None, pace: _Pace) -> None:
    headers = {"User-Agent": "protocore", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with _Watch() as watch, _open(urllib.request.Request(url, headers=headers), watch) as response:
        if response.status == 206 and have:
            if not str(response.headers["Content-Range"]).startswith(f"bytes {have}-"):
                part.unlink()  # another range than the one asked for: only a fresh start is safe
                return
        elif response.status == 200:
            have = 0
        else:
            raise DataError(f"{url}: unexpected answer {response.status}; try another server")
        _check_length(url, response.headers["Content-Length"], have, file)
        with _writing(part, fresh=not have) as out:
            while have <= file.size and (block := response.read1(min(_BLOCK, file.size + 1 - have))):
                out.write(block)
                have += len(block)
                watch.alive()
                pace.add(len(block))
                if progress is not None:
                    progress(file.name, have, file.size)
    if have > file.size:
        part.unlink()
        raise DataError(f"{url}: the server sends more than {file.size} bytes; try another server")


def _check_length(url: str, said: str | None, have: int, file: Download) -> None:
    if said is None:
        return
    if not re.fullmatch("[0-9]{1,18}", said.strip()):
        raise DataError(f"{url}: the server offers {shown(said)} bytes, expected {file.size - have}; try another "
                        "server")
    if have + int(said) != file.size:
        raise DataError(f"{url}: the server offers {have + int(said)} bytes, expected {file.size}; "
                        "this is not the published file. Try another server")


def _writing(part: Path, fresh: bool) -> IO[bytes]:
    """The part opened for more, or afresh; never through a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_TRUNC if fresh else os.O_APPEND)
    return open(part, "wb" if fresh else "ab", opener=lambda path, _: os.open(path, flags, 0o666))


# connections


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any,
                         newurl: str) -> urllib.request.Request | None:
        before, after = req.type, urlsplit(newurl).scheme
        if after not in ("http", "https") or (before == "https" and after != "https"):
            raise DataError(f"{req.full_url}: the server sends us on to {shown(newurl, 200)}; only addresses of "
                            "https are followed (of http too, from http). Try another server")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Watch(contextlib.AbstractContextManager["_Watch"]):
    """Ends the connections of a request when nothing of use has come for PATIENCE, however slowly lines trickle."""

    def __init__(self) -> None:
        self._doubles: list[socket.socket] = []
        self._over = threading.Event()
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def connect(self, *arguments: Any, **options: Any) -> socket.socket:
        made = socket.create_connection(*arguments, **options)
        self._doubles.append(made.dup())  # for TLS the first one is given away
        return made

    def alive(self) -> None:
        self._last = time.monotonic()

    def _look(self) -> None:
        while not self._over.wait(PATIENCE / 10):
            if time.monotonic() - self._last > PATIENCE:
                for double in self._doubles:
                    with contextlib.suppress(OSError):  # the other side has closed it already
                        double.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for double in self._doubles:
            double.close()


def _open(request: urllib.request.Request, watch: _Watch) -> Any:
    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(_with(http.client.HTTPConnection, watch.connect), req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(_with(http.client.HTTPSConnection, watch.connect), req)

    return urllib.request.build_opener(Http, Https, _Redirects).open(request, timeout=TIMEOUT)


def _with(kind: type[http.client.HTTPConnection], connect: Callable[..., socket.socket]) -> Any:
    """Connections of a kind that let us know their sockets."""
    def made(*arguments: Any, **options: Any) -> http.client.HTTPConnection:
        connection = kind(*arguments, **options)
        connection._create_connection = connect  # type: ignore[attr-defined]
        return connection

    return made
