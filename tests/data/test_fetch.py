"""Downloading from a server on loopback, unpacking, checking."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import os
import re
import struct
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protocore.data import fetch, transfer
from protocore.data.base import Content, Download, Source
from protocore.data.benchmarks import source_named, sources
from protocore.data.idx import idx_source
from protocore.data.sets.cifar100 import read_cifar100
from protocore.data.sets.digits import read_digits
from protocore.errors import DataError

SOURCES = sources()  # tests put smaller ones into it


class Server:
    """Serves `files`; the other fields make it misbehave."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True  # False: answer 200 and the whole file whatever is asked for
        self.cuts: list[int] = []  # bytes sent before the connection drops, one entry a request
        self.statuses: list[int] = []  # answered instead of the file, one entry a request
        self.shift = 0  # added to the start of a range
        self.lengths = True  # False: no Content-Length
        self.said_length: str | None = None  # instead of the true Content-Length
        self.redirect: str | None = None
        self.trickle = 0.0  # seconds between two bytes, of the body or (in the header) of a line that never ends
        self.trickle_header = False
        self.asked: list[tuple[str, str | None]] = []
        self.agents: set[str | None] = set()
        handler = partial(Handler, self)
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    def __init__(self, owner: Server, *arguments) -> None:  # type: ignore[no-untyped-def]
        self.owner = owner
        super().__init__(*arguments)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        owner, name, wanted = self.owner, self.path.strip("/"), self.headers["Range"]
        owner.asked.append((name, wanted))
        owner.agents.add(self.headers["User-Agent"])
        body = owner.files.get(name)
        status = owner.statuses.pop(0) if owner.statuses else 404 if body is None else 200
        if status >= 300 or body is None:
            self.send_error(status)
            return
        start = 0
        if wanted and owner.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) + owner.shift
            if start >= len(body):
                self.send_error(416)
                return
            status = 206
        if owner.redirect:
            self.send_response(302)
            self.send_header("Location", owner.redirect)
            self.end_headers()
            return
        if owner.trickle_header:
            self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
            self.slowly(b"x" * 10_000)
            return
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if owner.lengths:
            self.send_header("Content-Length", owner.said_length or str(len(body) - start))
        self.end_headers()
        cut = owner.cuts.pop(0) if owner.cuts else len(body)
        if owner.trickle:
            self.slowly(body[start:start + cut])
        else:
            self.wfile.write(body[start:start + cut])

    def slowly(self, body: bytes) -> None:
        with contextlib.suppress(OSError):  # the other side gives up
            for place in range(len(body)):
                self.wfile.write(body[place:place + 1])
                time.sleep(self.owner.trickle)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setattr(transfer, "TIMEOUT", 5.0)
    owner = Server()
    thread = threading.Thread(target=owner.http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield owner
    owner.http.shutdown()
    owner.http.server_close()
    thread.join()


def cifar_files() -> dict[str, bytes]:
    rng = np.random.default_rng(3)
    files = {"fine_label_names.txt": "\n".join(f"fine {number}" for number in range(100)).encode()}
    for name, count in (("train.bin", 40), ("test.bin", 8)):
        table = rng.integers(0, 256, (count, 3074), dtype=np.uint8)
        table[:, :2] %= 20
        files[name] = table.tobytes()
    return {f"cifar-100-binary/{name}": content for name, content in files.items()}


def tarred(files: dict[str, bytes], *extra: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in extra:
            tar.addfile(member)
    return out.getvalue()


def zipped(files: dict[str, bytes], *extra: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in [*files.items(), *extra]:
            bundle.writestr(name, content)
    return out.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


FILES = cifar_files()
ARCHIVE = "cifar-100-binary.tar.gz"
TRAIN = FILES["cifar-100-binary/train.bin"]


def source_of(body: bytes, name: str = ARCHIVE, limit: int = 1 << 20) -> Source:
    parts = {name: FILES[f"cifar-100-binary/{name}"] for name in ("train.bin", "test.bin")}
    contents = tuple(Content(name, len(content), sha256(content)) for name, content in parts.items())
    return Source("cifar100", read_cifar100, (40, 8), "cifar-100-binary", "http://127.0.0.1:9/",
                  files=(Download(name, len(body), f"md5:{hashlib.md5(body).hexdigest()}"),), contents=contents,
                  unpacked=limit, other="cifar-100-python")


@pytest.fixture
def archive(server: Server, monkeypatch: pytest.MonkeyPatch) -> bytes:
    body = tarred(FILES)
    server.files[ARCHIVE] = body
    monkeypatch.setitem(SOURCES, "cifar100", source_of(body))
    return body


def stored(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_get_lays_out_the_folder_and_a_second_call_does_nothing(server: Server, archive: bytes,
                                                                tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    root = tmp_path / "new" / "root"
    folder = fetch.get(SOURCES["cifar100"], root, base_url=server.url, progress=lambda *news: told.append(news))
    assert folder == root / "cifar-100-binary"
    assert stored(root) == FILES
    assert sorted(path.name for path in root.iterdir()) == ["cifar-100-binary"]
    assert told[-1] == (ARCHIVE, len(archive), len(archive))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert all(finding.ok for finding in fetch.check(SOURCES["cifar100"], root))
    assert fetch.get(SOURCES["cifar100"], root, base_url=server.url) == folder
    assert server.asked == [(ARCHIVE, None)]
    assert server.agents == {"protocore"}


def test_the_pickled_form_counts_as_there(server: Server, archive: bytes, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    empty = (read_digits()[0],) * 2
    small = dataclasses.replace(SOURCES["cifar100"], read=lambda root: empty, counts=(1442, 1442))
    monkeypatch.setitem(SOURCES, "cifar100", small)
    (tmp_path / "cifar-100-python").mkdir()
    assert fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url) == tmp_path / "cifar-100-python"
    assert server.asked == []


@pytest.mark.parametrize("have", [1, 5000, -1])
def test_a_part_is_resumed(server: Server, archive: bytes, tmp_path: Path, have: int) -> None:
    (tmp_path / f"{ARCHIVE}.part").write_bytes(archive[:have])
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert server.asked == [(ARCHIVE, f"bytes={have % len(archive)}-")]
    assert stored(tmp_path) == FILES


def test_a_complete_part_is_used_without_asking(server: Server, archive: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{ARCHIVE}.part").write_bytes(archive)
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert server.asked == []
    assert stored(tmp_path) == FILES


def test_a_complete_archive_is_used_without_asking(server: Server, archive: bytes, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(archive)
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert server.asked == []
    assert stored(tmp_path) == FILES


@pytest.mark.parametrize("part", [b"x" * 200_000, b"x" * 5000])
def test_a_part_too_long_or_of_another_file_is_replaced(server: Server, archive: bytes, tmp_path: Path,
                                                        part: bytes) -> None:
    assert len(archive) < 200_000
    (tmp_path / f"{ARCHIVE}.part").write_bytes(part)
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert server.asked[-1] == (ARCHIVE, None)
    assert stored(tmp_path) == FILES


def test_a_server_without_ranges(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / f"{ARCHIVE}.part").write_bytes(archive[:5000])
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert len(server.asked) == 1
    assert stored(tmp_path) == FILES


def test_a_server_that_sends_another_range(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.shift = 7
    (tmp_path / f"{ARCHIVE}.part").write_bytes(archive[:5000])
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert [wanted for _, wanted in server.asked] == ["bytes=5000-", None]
    assert stored(tmp_path) == FILES


def test_416_starts_afresh(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.statuses = [416]
    (tmp_path / f"{ARCHIVE}.part").write_bytes(archive[:5000])
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert [wanted for _, wanted in server.asked] == ["bytes=5000-", None]
    assert stored(tmp_path) == FILES


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("lengths", [True, False])
def test_a_server_that_dies_is_asked_again(server: Server, archive: bytes, tmp_path: Path, ranges: bool,
                                           lengths: bool) -> None:
    server.ranges, server.lengths, server.cuts = ranges, lengths, [3000, 10_000, 0, 20_000]
    server.statuses = [200, 503]
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert stored(tmp_path) == FILES
    wanted = [wanted for _, wanted in server.asked]
    if ranges:
        assert wanted == [None, "bytes=3000-", "bytes=3000-", "bytes=13000-", "bytes=13000-", "bytes=33000-"]


def test_giving_up_keeps_the_part_for_the_next_call(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.cuts = [4000] + [0] * (transfer.RETRIES + 1)
    with pytest.raises(DataError, match=rf"4000 of {len(archive)} bytes are here. Run the same command again"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert stored(tmp_path) == {f"{ARCHIVE}.part": archive[:4000]}
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert server.asked[-1] == (ARCHIVE, "bytes=4000-")
    assert stored(tmp_path) == FILES


def test_a_server_that_never_gets_further_is_given_up(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [4000, 9000] * 20
    with pytest.raises(DataError, match="Run the same command again"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert len(server.asked) <= 2 + transfer.RETRIES + 1


def test_no_server_at_all(archive: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"127\.0\.0\.1:9/{ARCHIVE}.*refused.*0 of {len(archive)} bytes"):
        fetch.get(SOURCES["cifar100"], tmp_path)


def test_404_is_final(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(DataError, match="answers 404"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert len(server.asked) == 1


@pytest.mark.parametrize("said", ["9" * 5000, "-5", "1e9", "²", "0x10", " "])
def test_a_length_that_is_no_length(server: Server, archive: bytes, tmp_path: Path, said: str) -> None:
    server.said_length = said
    with pytest.raises(DataError, match=r"the server offers .* bytes, expected") as caught:
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert len(str(caught.value)) < 500
    assert len(server.asked) == 1


def test_a_part_that_is_a_link_is_not_written_through(server: Server, archive: bytes, tmp_path: Path) -> None:
    root, precious = tmp_path / "root", tmp_path / "precious"
    root.mkdir()
    part = root / f"{ARCHIVE}.part"
    precious.write_bytes(b"mine")
    for lay in (lambda: part.symlink_to(precious), lambda: part.symlink_to(tmp_path / "nowhere"),
                lambda: os.link(precious, part), part.mkdir, lambda: os.mkfifo(part)):
        lay()
        with pytest.raises(DataError, match=rf"{ARCHIVE}\.part: a link, or no regular file.*remove it"):
            fetch.get(SOURCES["cifar100"], root, base_url=server.url)
        assert precious.read_bytes() == b"mine"
        assert not (tmp_path / "nowhere").exists()
        part.rmdir() if part.is_dir() else part.unlink()
    assert server.asked == []
    part.symlink_to(precious)
    for fresh in (True, False):  # a link that appears in the last moment
        with pytest.raises(OSError, match="symbolic"):
            transfer._writing(part, fresh)
    part.unlink()
    fetch.get(SOURCES["cifar100"], root, base_url=server.url)
    assert stored(root) == FILES


@pytest.mark.parametrize("target", ["ftp://127.0.0.1:9/x", "ftp://127.0.0.1:9/\x1b[31m"])
def test_other_schemes_are_not_followed(server: Server, archive: bytes, tmp_path: Path, target: str) -> None:
    server.redirect = target
    with pytest.raises(DataError, match="sends us on to 'ftp://") as caught:
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert "\x1b" not in str(caught.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://127.0.0.1/x", "data:,x"])
def test_nor_are_files(server: Server, archive: bytes, tmp_path: Path, target: str) -> None:
    server.redirect = target
    with pytest.raises(DataError, match="answers 302"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)


def test_redirects_among_http_are_followed_but_never_from_https_to_http(server: Server, archive: bytes,
                                                                        tmp_path: Path) -> None:
    other = Server()
    other.files = dict(server.files)
    thread = threading.Thread(target=other.http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    server.redirect = other.url + ARCHIVE
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert stored(tmp_path) == FILES
    other.http.shutdown()
    other.http.server_close()
    thread.join()
    safe = transfer.urllib.request.Request("https://127.0.0.1/x")
    with pytest.raises(DataError, match="only addresses of https"):
        transfer._Redirects().redirect_request(safe, None, 302, "", {}, "http://127.0.0.1/x")
    assert transfer._Redirects().redirect_request(safe, None, 302, "", {}, "https://127.0.0.1/y") is not None


def test_a_server_that_trickles_is_given_up(server: Server, archive: bytes, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PATIENCE", 0.5)
    server.trickle = 0.02
    with pytest.raises(DataError, match=r"only \d+ bytes in \d+ seconds; \d+ of .* again to go on from there"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    have = len((tmp_path / f"{ARCHIVE}.part").read_bytes())
    assert 0 < have < 1000
    server.trickle = 0.0
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert server.asked[-1] == (ARCHIVE, f"bytes={have}-")
    assert stored(tmp_path) == FILES


def test_one_byte_a_connection_is_a_trickle_too(server: Server, archive: bytes, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PATIENCE", 0.5)
    monkeypatch.setattr(transfer, "SLOWEST", 10**6)
    server.cuts = [1] * 100_000
    with pytest.raises(DataError, match=r"only .* bytes in"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)


def test_a_header_that_never_ends_is_given_up(server: Server, archive: bytes, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PATIENCE", 0.3)
    server.trickle, server.trickle_header = 0.02, True
    start = time.perf_counter()
    with pytest.raises(DataError, match="Run the same command again"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert time.perf_counter() - start < 60


def test_a_wrong_checksum_names_both_and_keeps_the_good(server: Server, archive: bytes,
                                                        tmp_path: Path) -> None:
    other = bytearray(archive)
    other[9000] ^= 1
    server.files[ARCHIVE] = bytes(other)
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(TRAIN)
    good, bad = hashlib.md5(archive).hexdigest(), hashlib.md5(other).hexdigest()
    with pytest.raises(DataError, match=rf"expected md5 {good}, met {bad}"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert stored(tmp_path) == {"cifar-100-binary/train.bin": TRAIN}
    assert len(server.asked) == 1


def test_without_a_checksum_the_size_and_the_contents_decide(server: Server, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dict(FILES) | {"cifar-100-binary/train.bin": TRAIN[:-1] + bytes([TRAIN[-1] ^ 1])}
    server.files[ARCHIVE] = body = tarred(wrong)
    source = dataclasses.replace(source_of(body), files=(Download(ARCHIVE, len(body), None),))
    monkeypatch.setitem(SOURCES, "cifar100", source)
    with pytest.raises(DataError, match=rf"train\.bin is damaged.*{sha256(TRAIN)}"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert set(stored(tmp_path)) == {ARCHIVE}
    loose = dataclasses.replace(source, contents=(Content("train.bin", len(TRAIN), None),))
    monkeypatch.setitem(SOURCES, "cifar100", loose)
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    finding = fetch.check(SOURCES["cifar100"], tmp_path)[0]
    assert finding.ok
    assert "size only" in finding.expected
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(TRAIN[3074:])
    assert fetch.check(SOURCES["cifar100"], tmp_path)[0].state == "damaged"


@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_of_another_size_is_not_taken(server: Server, archive: bytes, tmp_path: Path,
                                             lengths: bool) -> None:
    server.lengths = lengths
    server.files[ARCHIVE] = archive + b"x" * 3_000_000
    message = f"offers {len(archive) + 3_000_000} bytes, expected" if lengths else "more than"
    told: list[int] = []
    with pytest.raises(DataError, match=message):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url,
                  progress=lambda name, done, total: told.append(done))
    assert stored(tmp_path) == {}
    assert max(told, default=0) <= len(archive) + 1


def test_a_damaged_folder_is_moved_aside(server: Server, archive: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(TRAIN[:-3])
    (tmp_path / "cifar-100-binary.damaged").mkdir()
    fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert stored(folder) == {name.split("/")[1]: content for name, content in FILES.items()}
    assert stored(tmp_path / "cifar-100-binary.damaged-2") == {"train.bin": TRAIN[:-3]}


@pytest.mark.parametrize("url", ["file:///etc/", "ftp://127.0.0.1/", "127.0.0.1"])
def test_only_web_addresses_are_read(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="http://"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=url)


def test_names_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"licence.*image-net\.org.*imagenet/train/WNID/\*\.JPEG"):
        fetch.get(SOURCES["imagenet"], tmp_path)
    with pytest.raises(DataError, match="digits comes with scikit-learn"):
        fetch.get(SOURCES["digits"], tmp_path)
    with pytest.raises(DataError, match=r"'cifar11'.*cifar10, cifar100, digits, fashion-mnist, imagenet, mnist, tiny"):
        source_named("cifar11")
    assert source_named("cifar100-50") is source_named("cifar100")


def test_a_full_disk_and_a_bad_root_are_said_first(server: Server, archive: bytes, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="choose another --data-root"):
        fetch.get(SOURCES["cifar100"], tmp_path / "file" / "below", base_url=server.url)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DataError, match=rf"needs {len(archive) + (1 << 20)} bytes, 1000 are free"):
        fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert server.asked == []


# hostile archives


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def zip_link(name: str, target: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, 0o120777 << 16
    return member, target


HOSTILE = [
    (ARCHIVE, tarred(FILES, link("cifar-100-binary/l", "../../evil", tarfile.SYMTYPE)), "link or device"),
    (ARCHIVE, tarred(FILES, link("cifar-100-binary/l", "/etc/passwd", tarfile.LNKTYPE)), "link or device"),
    (ARCHIVE, tarred(FILES, link("l", "cifar-100-binary/train.bin", tarfile.LNKTYPE)), "link or device"),
    (ARCHIVE, tarred(FILES, link("cifar-100-binary/p", "", tarfile.FIFOTYPE)), "link or device"),
    (ARCHIVE, tarred(FILES, link("cifar-100-binary/d", "", tarfile.CHRTYPE)), "link or device"),
    ("x.zip", zipped(FILES, zip_link("cifar-100-binary/l", b"../../evil")), "link or device"),
    (ARCHIVE, tarred(FILES | {"bomb": bytes(2 << 20)}), "more than 1048576 bytes"),
    ("x.zip", zipped(FILES | {"bomb": bytes(2 << 20)}), "more than 1048576 bytes"),
    (ARCHIVE, tarred(FILES | {"./cifar-100-binary/train.bin": b"twice"}), "cannot be unpacked"),
    (ARCHIVE, tarred(FILES | {"cifar-100-binary/train.bin/x": b"below a file"}), "cannot be unpacked"),
    (ARCHIVE, tarred(FILES)[:-2000], "cannot be unpacked"),
    (ARCHIVE, b"no archive" * 50, "cannot be unpacked"),
    ("x.zip", b"no archive" * 50, "cannot be unpacked"),
    ("x.zip", zipped(FILES)[:-2000], "cannot be unpacked"),
    (ARCHIVE, tarred({"elsewhere/train.bin": TRAIN}), "cifar-100-binary is missing"),
    (ARCHIVE, tarred({name: FILES[name] for name in list(FILES)[:2]}), r"test\.bin is missing"),
    (ARCHIVE, tarred(FILES | {"cifar-100-binary/fine_label_names.txt": b"a\nb"}), "2 names"),
]


@pytest.mark.parametrize("name", ["../evil", "cifar-100-binary/../../evil", "OUTSIDE/evil", "/OUTSIDE/evil",
                                  "a\\..\\..\\evil", "c:evil"])
@pytest.mark.parametrize(("archive_name", "pack"), [(ARCHIVE, tarred), ("x.zip", zipped)])
def test_names_that_point_outside(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str,
                                  archive_name: str, pack) -> None:  # type: ignore[no-untyped-def]
    body = pack(FILES | {name.replace("OUTSIDE", str(tmp_path)): b"evil"})
    refused(server, tmp_path, monkeypatch, archive_name, body, "points outside")


@pytest.mark.parametrize(("name", "body", "message"), HOSTILE)
def test_hostile_archives_leave_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        name: str, body: bytes, message: str) -> None:
    refused(server, tmp_path, monkeypatch, name, body, message)


def refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: bytes,
            message: str) -> None:
    """The archive is refused by name, and what was there is all there is afterwards."""
    server.files[name] = body
    monkeypatch.setitem(SOURCES, "cifar100", source_of(body, name))
    root = tmp_path / "a" / "root"
    (root / "cifar-100-binary").mkdir(parents=True)
    (root / "cifar-100-binary" / "mine").write_bytes(b"kept")
    with pytest.raises(DataError, match=message) as caught:
        fetch.get(SOURCES["cifar100"], root, base_url=server.url)
    assert str(root / name) in str(caught.value)
    assert stored(tmp_path) == {f"a/root/{name}": body, "a/root/cifar-100-binary/mine": b"kept"}
    assert sorted(path.name for path in root.iterdir()) == sorted([name, "cifar-100-binary"])


def test_a_zip_is_unpacked_and_modes_are_not_taken_over(server: Server, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    member = zipfile.ZipInfo("cifar-100-binary/run")
    member.create_system, member.external_attr = 3, 0o104777 << 16
    folder = zipfile.ZipInfo("cifar-100-binary/")
    body = zipped({}, (folder, b""), *[(zipfile.ZipInfo(name), content) for name, content in FILES.items()],
                  (member, b"#!"))
    server.files["x.zip"] = body
    monkeypatch.setitem(SOURCES, "cifar100", source_of(body, "x.zip"))
    got = fetch.get(SOURCES["cifar100"], tmp_path, base_url=server.url)
    assert stored(tmp_path) == FILES | {"cifar-100-binary/run": b"#!"}
    assert not os.access(got / "run", os.X_OK)


# single files


def idx_bodies() -> dict[str, bytes]:
    rng = np.random.default_rng(4)
    bodies = {}
    for part, count in (("train", 12), ("t10k", 5)):
        pixels = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        bodies[f"{part}-images-idx3-ubyte"] = struct.pack(">4I", 0x803, count, 4, 4) + pixels.tobytes()
        bodies[f"{part}-labels-idx1-ubyte"] = struct.pack(">2I", 0x801, count) + labels.tobytes()
    return bodies


BODIES = idx_bodies()


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    packed = {f"{name}.gz": gzip.compress(body) for name, body in BODIES.items()}
    server.files |= packed
    source = idx_source("mnist", "http://127.0.0.1:9/", "0123456789", tuple(
        (name, len(gz := packed[f"{name}.gz"]), hashlib.md5(gz).hexdigest(), len(body), sha256(body))
        for name, body in BODIES.items()))
    monkeypatch.setitem(SOURCES, "mnist", dataclasses.replace(source, counts=(12, 5)))
    return packed


def test_single_files_are_fetched_as_they_are(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    folder = fetch.get(SOURCES["mnist"], tmp_path, base_url=server.url)
    assert stored(folder) == mnist
    fetch.get(SOURCES["mnist"], tmp_path, base_url=server.url)
    assert len(server.asked) == 4


def test_only_missing_and_damaged_files_are_fetched(server: Server, mnist: dict[str, bytes],
                                                    tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    again = gzip.compress(BODIES["train-images-idx3-ubyte"], 1, mtime=1)  # other bytes, same content
    (folder / "train-images-idx3-ubyte.gz").write_bytes(again)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(BODIES["t10k-labels-idx1-ubyte"])
    (folder / "train-labels-idx1-ubyte").write_bytes(BODIES["train-labels-idx1-ubyte"][:-1])
    fetch.get(SOURCES["mnist"], tmp_path, base_url=server.url)
    assert [name for name, _ in server.asked] == ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"]
    assert stored(folder) == {
        "train-images-idx3-ubyte.gz": again,
        "train-labels-idx1-ubyte.gz": mnist["train-labels-idx1-ubyte.gz"],
        "train-labels-idx1-ubyte.damaged": BODIES["train-labels-idx1-ubyte"][:-1],
        "t10k-images-idx3-ubyte.gz": mnist["t10k-images-idx3-ubyte.gz"],
        "t10k-labels-idx1-ubyte": BODIES["t10k-labels-idx1-ubyte"],
    }


def test_a_wrong_single_file_replaces_nothing(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    name = "train-images-idx3-ubyte.gz"
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / name).write_bytes(b"old and damaged")
    server.files[name] = mnist[name][:-1] + b"?"
    with pytest.raises(DataError, match="expected md5"):
        fetch.get(SOURCES["mnist"], tmp_path, base_url=server.url)
    assert stored(tmp_path / "mnist") == {name: b"old and damaged"}


def test_single_files_are_checked_after_the_download(server: Server, mnist: dict[str, bytes], tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCES["mnist"]
    wrong = dataclasses.replace(source.contents[1], sha256="0" * 64)
    monkeypatch.setitem(SOURCES, "mnist", dataclasses.replace(
        source, contents=(source.contents[0], wrong, *source.contents[2:])))
    with pytest.raises(DataError, match="not the published ones"):
        fetch.get(SOURCES["mnist"], tmp_path, base_url=server.url)


# check


def states(found: list[fetch.FileCheck]) -> dict[str, str]:
    return {Path(finding.path).name: finding.state for finding in found}


def test_check_of_an_empty_root(tmp_path: Path) -> None:
    for name in [name for name in SOURCES if name != "digits"]:
        (finding,) = fetch.check(SOURCES[name], tmp_path)
        assert (finding.state, finding.ok) == ("missing", False)
    assert states(fetch.check(SOURCES["digits"], tmp_path)) == {"digits": "ok"}


def test_check_finds_every_kind_of_damage(archive: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()

    def lay(**changes: bytes | None) -> dict[str, str]:
        for name, content in FILES.items():
            content = changes.get(Path(name).stem, content)
            (tmp_path / name).unlink(missing_ok=True)
            if content is not None:
                (tmp_path / name).write_bytes(content)
        return states(fetch.check(SOURCES["cifar100"], tmp_path))

    assert lay() == {"train.bin": "ok", "test.bin": "ok", "cifar-100-binary": "ok"}
    flipped = TRAIN[:5000] + bytes([TRAIN[5000] ^ 1]) + TRAIN[5001:]
    assert lay(train=flipped) == {"train.bin": "damaged", "test.bin": "ok", "cifar-100-binary": "ok"}
    assert lay(train=TRAIN[3074:])["train.bin"] == "damaged"
    assert lay(train=TRAIN[3074:])["cifar-100-binary"] == "missing"
    assert lay(train=TRAIN + TRAIN)["cifar-100-binary"] == "damaged"
    assert lay(test=None) == {"train.bin": "ok", "test.bin": "missing", "cifar-100-binary": "damaged"}
    assert lay(fine_label_names=b"one\n")["cifar-100-binary"] == "damaged"
    bad_label = TRAIN[:1] + b"\xff" + TRAIN[2:]
    lay(train=bad_label)
    assert "record 0 has label 255" in fetch.check(SOURCES["cifar100"], tmp_path)[-1].met


def test_check_reads_through_gzip_within_bounds(mnist: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, body in mnist.items():
        (folder / name).write_bytes(body)
    assert set(states(fetch.check(SOURCES["mnist"], tmp_path)).values()) == {"ok"}
    name, surplus = "train-images-idx3-ubyte", bytes(9 << 20)
    for body, met in [(mnist[f"{name}.gz"][:-9], "damaged gzip"),
                      (gzip.compress(BODIES[name][:-1]), "207 bytes"),
                      (gzip.compress(BODIES[name] + surplus), "more than 208 bytes"),
                      (gzip.compress(BODIES[name] + surplus)[:-9], "more than 208 bytes")]:  # never got that far
        (folder / f"{name}.gz").write_bytes(body)
        finding = fetch.check(SOURCES["mnist"], tmp_path)[0]
        assert finding.state == "damaged"
        assert met in finding.met


def test_check_decodes_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "tiny-imagenet-200"
    (base / "val" / "images").mkdir(parents=True)
    for wnid in ("n01", "n02"):
        (base / "train" / wnid / "images").mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(base / "train" / wnid / "images" / "0.JPEG")
    Image.new("RGB", (64, 64)).save(base / "val" / "images" / "0.JPEG")
    (base / "wnids.txt").write_text("n01\nn02\n")
    (base / "val" / "val_annotations.txt").write_text("0.JPEG\tn01\t0\t0\t9\t9\n")
    monkeypatch.setitem(SOURCES, "tinyimagenet",
                        dataclasses.replace(SOURCES["tinyimagenet"], counts=(2, 1)))
    told: list[tuple[int, int]] = []
    found = fetch.check(SOURCES["tinyimagenet"], tmp_path, progress=lambda done, total: told.append((done, total)))
    assert states(found) == {"tiny-imagenet-200": "ok"}
    assert told == [(2, 3), (3, 3)]
    (base / "val" / "images" / "0.JPEG").write_bytes(b"damaged")
    (finding,) = fetch.check(SOURCES["tinyimagenet"], tmp_path)
    assert finding.state == "damaged"
    assert "0.JPEG" in finding.met


def test_the_table_of_sources_is_sound() -> None:
    there = {name: source for name, source in SOURCES.items() if source.url}
    assert set(there) == {"cifar10", "cifar100", "mnist", "fashion-mnist", "tinyimagenet"}
    assert all(source.by_hand for name, source in SOURCES.items() if name not in there)
    for source in there.values():
        assert source.url
        assert re.fullmatch(r"https?://[\w.-]+/.*", source.url + "x")
        for file in source.files:
            assert file.checksum
            assert re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.checksum)
        for content in source.contents:
            assert content.sha256
            assert re.fullmatch("[0-9a-f]{64}", content.sha256)
        assert not source.unpacked or sum(content.size for content in source.contents) < source.unpacked
    assert sum(content.size for content in SOURCES["cifar100"].contents) == 60000 * 3074
    assert sum(content.size for content in SOURCES["cifar10"].contents) == 60000 * 3073


@pytest.mark.skipif("PROTOCORE_DATA" not in os.environ, reason="PROTOCORE_DATA, a folder of data, is not set")
@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist"])
def test_real_files_have_the_published_checksums(name: str) -> None:
    root = Path(os.environ["PROTOCORE_DATA"])
    if not (root / str(SOURCES[name].folder)).is_dir():
        pytest.skip(f"no {SOURCES[name].folder} in {root}")
    assert [finding for finding in fetch.check(SOURCES[name], root) if not finding.ok] == []
