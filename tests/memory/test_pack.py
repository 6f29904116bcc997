"""The pack: bit for bit there and back, no byte uncounted, no lie believed; merged and pruned by the rules."""

import copy
import hashlib
import io
import json
import os
import random
import time
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open

from protocore.codecs import codec_named, codec_told, way_to
from protocore.codecs.base import Codec
from protocore.codecs.jpeg import JPEG
from protocore.codecs.pixels import Pixels
from protocore.data.benchmarks import open_stream
from protocore.errors import BudgetError, DataError, UserError
from protocore.learn.learner import Learner
from protocore.memory import pack as packs
from protocore.memory.fill import BalancedReservoir, Reservoir
from protocore.memory.pack import (
    PackError,
    averaged,
    exemplars,
    merge,
    prune,
    read_pack,
    save_pack,
    summary,
    to_bytes,
    unpack,
    verify,
    write_pack,
)
from protocore.memory.pack.format import classes_of
from protocore.memory.prototypes import PrototypeStore
from protocore.memory.store import ExemplarStore
from protocore.runs.configure import configure

SHAPE = (1, 4, 4)
NAMES = ["ant", "bee", "cat", "dog", "eel"]
quick = settings(deadline=None, derandomize=True, max_examples=40,
                 suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Coarse(Pixels):
    """Lossy, of fixed size: the upper four bits of each pixel, two pixels a byte."""

    name = "coarse"
    lossless = False
    shared_bytes = 1000
    exemplar_bytes = 8
    digest = hashlib.sha256(b"coarse").hexdigest()

    def to_bytes(self, z):
        nibbles = (torch.sigmoid(z) * 15).round().to(torch.uint8).flatten(1)
        return [bytes(row.tolist()) for row in nibbles[:, ::2] * 16 + nibbles[:, 1::2]]

    def from_bytes(self, stored):
        if any(len(row) != 8 for row in stored):
            raise DataError("8 bytes an exemplar")
        rows = torch.tensor([[half for byte in row for half in (byte // 16, byte % 16)] for row in stored])
        return self.encode(rows.view(-1, *self.image_shape).float() / 15)


class Squeezed(Coarse):
    """Lossy, of sizes that differ."""

    name = "squeezed"
    exemplar_bytes = None
    digest = hashlib.sha256(b"squeezed").hexdigest()

    def to_bytes(self, z):
        return [zlib.compress(row, 9) for row in super().to_bytes(z)]

    def from_bytes(self, stored):
        try:
            return super().from_bytes([zlib.decompress(row) for row in stored])
        except zlib.error as error:
            raise DataError(f"not zlib: {error}") from None


def pictures(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=generator)
    images[::3, :, 1:] = 0  # some that a compressor makes short
    return images


ORIGINS = {"coded exemplars": "coded", "synthetic exemplars": "synthetic"}  # what the stores of protocore say


def store_of(codec: Codec, labels, name: str = "exemplars", seed: int = 0, **columns) -> ExemplarStore:
    store = ExemplarStore(codec, name)
    store.add(pictures(len(labels), seed), torch.tensor(labels, dtype=torch.int64), **columns)
    return store


def prototypes_of(labels, seed: int = 0, dtype: str = "float16") -> dict[str, torch.Tensor]:
    store = PrototypeStore(6, dtype)
    store.set(list(labels), torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed)))
    return store.tensors()


def condensed_with_real() -> dict[str, torch.Tensor]:
    """What protocore --real keeps."""
    torch.manual_seed(0)
    real = BalancedReservoir(ExemplarStore(Pixels(SHAPE), "real exemplars"), 3)
    real.offer(pictures(40), torch.arange(40) % 4)
    made = store_of(Pixels(SHAPE), [0, 1, 2, 3], "coded exemplars", seed=1)
    return (real.tensors() | made.tensors() | prototypes_of(range(4))
            | {"statistics/sigma": torch.tensor([0.3])})


def put(path: Path, tensors, codec: Codec | None = None, names=NAMES, method: str = "er") -> packs.Pack:
    return write_pack(path, tensors, class_names=names, codec=codec or Pixels(SHAPE), method=method, origins=ORIGINS)


def same(a: packs.Pack, b: packs.Pack) -> bool:
    return a.info == b.info and same_tensors(a.tensors, b.tensors)


def same_tensors(a, b) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].numpy().tobytes() == b[k].numpy().tobytes()
        for k in a)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "memory.pack"


@pytest.fixture
def make(tmp_path):
    """Packs of tensors, through a file."""
    def made(tensors, codec=None, names=NAMES, method="er"):
        return put(tmp_path / "made.pack", tensors, codec, names, method)
    return made


MEMORIES = {
    "real, a reservoir a class": (Pixels(SHAPE), lambda: filled(BalancedReservoir, Pixels(SHAPE), 3)),
    "real, one reservoir": (Pixels(SHAPE), lambda: filled(Reservoir, Pixels(SHAPE), 7)),
    "coded": (Coarse(SHAPE), lambda: filled(BalancedReservoir, Coarse(SHAPE), 3)),
    "coded, of many sizes, with columns": (Squeezed(SHAPE), lambda: store_of(
        Squeezed(SHAPE), [4, 0, 0, 2, 1], logits=torch.tensor([[1.0, float("nan")]] * 5),
        loss=torch.arange(5.0, dtype=torch.float64)).tensors()),
    "condensed and real": (Pixels(SHAPE), condensed_with_real),
    "synthetic": (Coarse(SHAPE), lambda: store_of(Coarse(SHAPE), [3], "synthetic exemplars").tensors()),
    "prototypes alone": (Pixels(SHAPE), lambda: prototypes_of([1, 4], dtype="float32")),
    "nothing yet": (Pixels(SHAPE), lambda: BalancedReservoir(ExemplarStore(Pixels(SHAPE)), 1).tensors()),
    "nothing": (Pixels(SHAPE), dict),
    "a network": (Pixels(SHAPE), lambda: {"old network/w": torch.randn(3, 2), "old network/n": torch.tensor(7)}),
}


def filled(kind, codec: Codec, size: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    filler = kind(ExemplarStore(codec), size)
    filler.offer(pictures(30), torch.arange(30) % 5)
    return filler.tensors()


def learner(**flags) -> Learner:
    config = configure({"backbone": "mlp", "width": 8, "epochs": 1, "threads": 1, **flags})
    stream = open_stream(config.settings)
    mine = Learner.of(config, stream.image_shape)
    for index in range(2):
        mine.learn(stream.open(index))
    return mine


# -- there and back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MEMORIES)
def test_what_is_read_is_what_was_written(kind, path):
    codec, build = MEMORIES[kind]
    tensors = build()
    written = put(path, tensors, codec)
    read = read_pack(path)
    assert same(read, written)
    assert same_tensors(read.tensors, tensors)
    assert read.info.class_names == tuple(NAMES)
    assert (read.info.image_shape, read.info.method) == (SHAPE, "er")
    assert to_bytes(read) == path.read_bytes()
    with safe_open(path, framework="pt") as file:  # any reader of safetensors sees the same
        assert same_tensors({k: file.get_tensor(k) for k in file.keys()}, tensors)  # noqa: SIM118
    assert all(finding.ok for finding in verify(path, codec))


@pytest.mark.parametrize("kind", MEMORIES)
def test_every_byte_of_the_file_is_in_the_ledger(kind, path):
    codec, build = MEMORIES[kind]
    pack = put(path, build(), codec)
    assert pack.info.ledger.total == path.stat().st_size
    listed = {e.name: e.bytes for e in pack.info.ledger.entries if not e.shared}
    assert {k: v for k, v in listed.items() if k != "file header"} == {k: t.nbytes for k, t in pack.tensors.items()}
    lines = {line.part: line for line in summary(pack)}
    assert lines["total"].bytes == path.stat().st_size
    assert sum(line.bytes for line in lines.values() if not line.shared) == 2 * lines["total"].bytes


@pytest.mark.parametrize("boundary", [1000, 10_000])
def test_the_header_counts_its_own_digits(boundary, path):
    def header(length: int) -> int:
        pack = put(path, prototypes_of([0]), names=["x" * length])
        assert pack.info.ledger.total == len(to_bytes(pack)) == path.stat().st_size
        return path.stat().st_size - 13

    length = boundary - header(0)
    sizes = [header(length + more) for more in range(-20, 20)]
    assert min(sizes) < boundary <= max(sizes)  # where its size gains a digit, and with it the header


def test_the_same_memory_gives_the_same_bytes(tmp_path):
    tensors = condensed_with_real()
    put(tmp_path / "a.pack", tensors)
    put(tmp_path / "b" / "c.pack", dict(reversed(tensors.items())))
    assert (tmp_path / "a.pack").read_bytes() == (tmp_path / "b" / "c.pack").read_bytes()


@pytest.mark.parametrize("flags", [{"method": "er", "spc": 3}, {"method": "er", "capacity": 9},
                                   {"method": "protocore", "spc": 2, "real": 3, "condense_steps": 2},
                                   {"method": "protocore", "start": "random", "condense_steps": 2}])
def test_memories_of_runs(flags, tmp_path):
    """Of one seed the same file; from the file the same memory."""
    for name in ("a", "b"):
        mine = learner(**flags)
        memory, codec = mine.memory(), mine.tools.codec
        mine.save_pack(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    pack = read_pack(tmp_path / "a")
    assert same_tensors(pack.tensors, memory)
    other = learner(**flags | {"seed": 1})
    other.method.load_state(pack.tensors)
    assert same_tensors(other.memory(), memory)
    origins = {"exemplars": "real", "real exemplars": "real", "coded exemplars": "coded",
               "synthetic exemplars": "synthetic"}
    assert pack.info.groups.keys() == {store.name for store in mine.method.stores()}
    for store in mine.method.stores():
        assert pack.info.groups[store.name].origin == origins[store.name]
        images, labels = exemplars(pack, codec, store.name)
        assert torch.equal(images, store.images)
        assert torch.equal(labels, store.labels)


@pytest.mark.parametrize("codec", [Pixels(SHAPE), Coarse(SHAPE), Squeezed(SHAPE)], ids=lambda d: d.name)
def test_exemplars_are_what_replay_sees(codec, make):
    store = store_of(codec, [i % 5 for i in range(300)])
    images, labels = exemplars(make(store.tensors(), codec), codec, "exemplars")
    assert images.dtype == torch.uint8
    assert torch.equal(images, store.images)
    assert torch.equal(labels, store.labels)


def test_a_pack_says_how_each_exemplar_was_made(make):
    origins = {}
    for codec in (Pixels(SHAPE), Coarse(SHAPE)):
        for name in ("exemplars", "real exemplars", "coded exemplars", "synthetic exemplars"):
            group = make(store_of(codec, [0, 1], name).tensors(), codec).info.groups[name]
            assert (group.codec, group.digest, group.bytes) == (codec.name, codec.digest, codec.exemplar_bytes)
            origins[codec.name, name] = group.origin
    assert [origins["pixels", n] for n in ("exemplars", "real exemplars")] == ["real", "real"]
    assert [origins["coarse", n] for n in ("exemplars", "real exemplars")] == ["coded", "coded"]
    for name in ("pixels", "coarse"):
        assert origins[name, "coded exemplars"] == "coded"
        assert origins[name, "synthetic exemplars"] == "synthetic"


def test_an_origin_is_said_and_not_read_off_a_name(path):
    tensors = store_of(Pixels(SHAPE), [0, 1], "coded exemplars").tensors()
    given = {"class_names": NAMES, "codec": Pixels(SHAPE), "method": "er"}
    assert write_pack(path, tensors, **given).info.groups["coded exemplars"].origin == "real"
    for origin in ("coded", "synthetic"):
        pack = write_pack(path, tensors, **given, origins={"coded exemplars": origin})
        assert pack.info.groups["coded exemplars"].origin == origin
    with pytest.raises(DataError, match="of an origin among synthetic, coded, real, met 'drawn'"):
        write_pack(path, tensors, **given, origins={"coded exemplars": "drawn"})


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_memory_is_taken_up_as_it_was_shipped(kind, path):
    codec, build = MEMORIES[kind]
    tensors = build()
    put(path, tensors, codec, method="derpp")
    taken = unpack(path)
    assert same_tensors(taken.tensors, tensors)
    assert (taken.class_names, taken.method, taken.image_shape) == (tuple(NAMES), "derpp", SHAPE)
    kept = any(name.endswith("/bytes") for name in tensors)
    assert (taken.codec, taken.digest) == ((codec.spec, codec.digest) if kept else (None, None))
    taken.check_codec(codec)
    other = Coarse(SHAPE) if codec.name == "pixels" else Pixels(SHAPE)
    if kept:
        with pytest.raises(DataError, match=f"written by the codec {codec.spec} .*; met {other.spec} .*give the one"):
            taken.check_codec(other)
    else:
        taken.check_codec(other)
    with pytest.raises(DataError, match=r"for images of \(1, 4, 4\); met .* for \(1, 4, 8\)"):
        taken.check_codec(type(codec)((1, 4, 8)))


def test_exemplars_of_two_codecs_are_not_taken_up(path):
    pack = put(path, condensed_with_real())
    groups = dict(pack.info.groups)
    groups["coded exemplars"] = replace(groups["coded exemplars"], digest="0" * 64)
    save_pack(path, packs.format.sealed(pack.tensors, replace(pack.info, groups=groups)))
    with pytest.raises(PackError, match=r"exemplars of one codec, met pixels \(000000000000…\), pixels"):
        unpack(path)


def test_a_damaged_pack_is_not_taken_up(path):
    put(path, condensed_with_real())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PackError, match="sha256"):
        unpack(path)


def test_summary_of_coded_exemplars(make):
    store = store_of(Coarse(SHAPE), [0, 0, 0, 1, 4, 4])
    tensors = store.tensors() | prototypes_of([0, 1, 2]) | {"statistics/sigma": torch.ones(1)}
    lines = {line.part: line for line in summary(make(tensors, Coarse(SHAPE)))}
    assert list(lines) == ["exemplars", "prototypes", "statistics", "file header", "total", "decoder coarse"]
    mine = lines["exemplars"]
    assert (mine.origin, mine.classes, mine.exemplars, mine.bytes) == ("coded", 3, 6, 6 * 9)
    assert mine.class_bytes == 18
    assert (lines["prototypes"].bytes, lines["prototypes"].classes) == (3 * (12 + 1), 3)
    assert lines["statistics"].bytes == 4
    assert (lines["total"].classes, lines["total"].exemplars) == (4, 6)
    shared = lines["decoder coarse"]
    # 16 pixels against 8 bytes: an exemplar saves 8 bytes, a class with its two 16; 1000 bytes are won back at 63.
    assert (shared.shared, shared.bytes, shared.pays_from) == (True, 1000, 63)


def test_a_memory_that_is_no_pack_is_not_written(path):
    put(path, condensed_with_real())
    before = path.read_bytes()
    for tensors, names, message in (
        (condensed_with_real(), ["ant"], "within the 1 class names"),
        ({"statistics/flags": torch.zeros(2, dtype=torch.bool)}, NAMES, "convert"),
        ({}, ["\ud800"], "no Unicode"),
        (store_of(Coarse(SHAPE), [0]).tensors(), NAMES, "rows of 16 bytes"),
        ({f"statistics/{i}": torch.zeros(1) for i in range(5000)}, NAMES, "at most 4096 tensors"),
    ):
        with pytest.raises(DataError, match=message):
            put(path, tensors, names=names)
        assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


# -- lies ------------------------------------------------------------------------------------------------------


def dump(value) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def split(data: bytes):
    """Header, document and tensor bytes of a pack."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    return header, json.loads(header.pop("__metadata__")["protocore pack"]), data[end:]


def framed(text: str | bytes, body: bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(8, "little") + raw + body


def joined(header, said, body: bytes) -> bytes:
    text = dump({**header, "__metadata__": {"protocore pack": dump(said)}})
    return framed(text + " " * (-len(text.encode()) % 8), body)


def sealed(header, said, body: bytes) -> bytes:
    """With the hash of whatever it says: a lie that was told with care. A second way to the hash and the ledger."""
    said = copy.deepcopy(said)
    if isinstance(said.get("ledger"), list):
        for _ in range(3):
            for row in said["ledger"]:
                if isinstance(row, list) and row and row[0] == "file header":
                    row[1] = len(joined(header, said, body)) - len(body)
    told = hashlib.sha256(dump({k: v for k, v in said.items() if k != "sha256"}).encode())
    for name in sorted(header):
        entry = header[name]
        if isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}:
            told.update(dump([name, entry["dtype"], entry["shape"]]).encode())
            if isinstance(entry["data_offsets"], list) and [type(x) for x in entry["data_offsets"]] == [int, int]:
                told.update(body[slice(*entry["data_offsets"])])
    if "sha256" in said:
        said["sha256"] = told.hexdigest()
    return joined(header, said, body)


def test_the_hash_and_the_ledger_are_what_the_tests_make_of_them(path):
    for codec, build in MEMORIES.values():
        put(path, build(), codec)
        assert sealed(*split(path.read_bytes())) == path.read_bytes()


def change(at: str, value):
    """Set a place in header (h/...) or document (d/...) to a value, or what a function makes of the old one."""
    def changed(header, said, body):
        *way, last = at.split("|")
        place = {"h": header, "d": said}[way[0]]
        for step in way[1:]:
            place = place[int(step) if isinstance(place, list) else step]
        key = int(last) if isinstance(place, list) else last
        place[key] = value(place.get(key)) if callable(value) else value
        return body
    return changed


def drop(at: str):
    def dropped(header, said, body):
        *way, last = at.split("|")
        place = {"h": header, "d": said}[way[0]]
        for step in way[1:]:
            place = place[step]
        del place[last]
        return body
    return dropped


def write_bytes(tensor: str, at: int, value: bytes):
    def wrote(header, said, body):
        start = header[tensor]["data_offsets"][0] + at
        return body[:start] + value + body[start + len(value):]
    return wrote


LIES = [
    (change("d|version", 2), "version 1, .* met version 2"),
    (change("d|version", "1"), "met version '1'"),
    (change("d|version", True), "met version True"),
    (drop("d|version"), "met version None"),
    (drop("d|method"), "the fields"),
    (change("d|more", 1), "the fields"),
    (change("d|method", 3), "a text as 'method', met 3"),
    (change("d|created", None), "a text as 'created'"),
    (change("d|image shape", [1, 4]), "channels, height and width"),
    (change("d|image shape", [0, 4, 4]), "channels, height and width"),
    (change("d|image shape", [1, 4, 2**60]), "channels, height and width"),
    (change("d|image shape", [1, 2049, 2048]), "channels, height and width of up to 4,194,304 values"),
    (change("d|image shape", [1, 4, 5]), "rows of 16 bytes"),
    (change("d|class names", ["ant", "bee"]), "within the 2 class names, met labels from 0 to 3"),
    (change("d|class names", ["ant", 2, "cat", "dog"]), "a list of texts"),
    (change("d|class names", {"ant": 0}), "a list of texts"),
    (change("d|groups", []), "an object as 'groups'"),
    (drop("d|groups|coded exemplars"), "described"),
    (change("d|groups|more", {"decoder": "x", "digest": "0" * 64, "origin": "real", "bytes": 1}), "described"),
    (change("d|groups|coded exemplars|origin", "drawn"), "of an origin among synthetic, coded, real, met 'drawn'"),
    (change("d|groups|real exemplars|origin", ["real"]), "of an origin among"),
    (change("d|groups|real exemplars|decoder", 1), "a codec's name"),
    *((change("d|groups|real exemplars|decoder", name), "a codec's name, at most a number and ',entropy'")
      for name in ("", "vqgan:/etc/passwd", "vqgan:./x.safetensors:4", "diffusers:attacker/model", "taming:.",
                   "webp:²", "webp:١", "webp:", "webp:10,", "vqgan:4,sweeps=9", "../x", "[red]", "webp:" + "1" * 5000,
                   "x" * 65, "pixels\n")),
    (change("d|groups|real exemplars|digest", "F" * 64), "64 hexadecimal digits"),
    (change("d|groups|real exemplars|digest", "0" * 63), "64 hexadecimal digits"),
    (change("d|groups|real exemplars|bytes", 15), "rows of 15 bytes"),
    (change("d|groups|real exemplars|bytes", 0), "or null"),
    (change("d|groups|real exemplars|bytes", None), "differ in size"),
    (drop("d|groups|real exemplars|bytes"), "decoder, digest, origin and bytes"),
    (change("d|ledger|0|1", 17), "a ledger of exactly what the file holds"),
    (change("d|ledger|0", ["x", 1]), "rows of three"),
    (change("d|ledger|0|1", -1), "rows of three"),
    (change("d|ledger", lambda rows: rows[1:]), "a ledger of exactly"),
    (change("d|ledger", lambda rows: rows[:1] + rows), "a ledger of exactly"),
    (change("d|shared", {"decoder x": -1}), "bytes by name"),
    (write_bytes("real exemplars/labels", 3, b"\x09"), "within the 5 class names, met labels from 0 to 9"),
    (write_bytes("prototypes/labels", 0, b"\x01\x01"), "one prototype a class"),
    (write_bytes("real exemplars/seen", 3, b"\xff"), "counters"),
    (drop("h|prototypes/labels"), "to begin at byte"),
    (change("h|statistics/sigma|dtype", "BF16"), "of a type among"),
    (change("h|statistics/sigma|dtype", ["F32"]), "of a type among"),
    (change("h|real exemplars/labels|dtype", "I8"), "a row of class numbers, met torch.int8"),
    (change("h|coded exemplars/bytes|dtype", "I8"), "rows of 16 bytes"),
    (change("h|statistics/sigma|shape", [2**60]), "as its offsets say, met the shape .1152921504606846976"),
    (change("h|statistics/sigma|shape", [2**60, 2**60, 2**60, 2**60]), "as its offsets say"),
    (change("h|statistics/sigma|shape", [2**62, 4]), "as its offsets say"),
    (change("h|statistics/sigma|shape", [-1, -1]), "a shape of up to 8 numbers"),
    (change("h|statistics/sigma|shape", [True]), "a shape of up to 8 numbers"),
    (change("h|statistics/sigma|shape", [1] * 9), "a shape of up to 8 numbers"),
    (change("h|statistics/sigma|shape", 1), "a shape of up to 8 numbers"),
    (change("h|statistics/sigma|shape", [10**30]), "of JSON, met a number of 31 digits"),
    (change("h|statistics/sigma|shape", [1.0]), "of JSON, met the number 1.0"),
    (change("h|statistics/sigma|data_offsets", [0, 2**60]), "as its offsets say"),
    (change("h|statistics/sigma|data_offsets", [4, 0]), "as its offsets say"),
    (change("h|statistics/sigma|data_offsets", [0]), "two data_offsets"),
    (change("h|statistics/sigma|data_offsets", lambda at: [at[0] + 4, at[1] + 4]), "to begin at byte"),
    (change("h|statistics/sigma|more", 1), "dtype, shape and data_offsets"),
    (change("h|statistics/sigma", []), "dtype, shape and data_offsets"),
    (change("h|statistics/void", {"dtype": "F32", "shape": [0, 2**60, 2**60], "data_offsets": [0, 0]}),
     "as its offsets say"),
    (lambda h, d, body: body + b"\0", "a file of .* bytes, as its header says"),
    (lambda h, d, body: body[:-1], "a file of .* bytes, as its header says"),
]


@pytest.mark.parametrize(("lie", "message"), LIES, ids=range(len(LIES)))
def test_a_lie_with_a_right_hash_is_still_a_lie(lie, message, path):
    put(path, condensed_with_real())
    header, said, body = split(path.read_bytes())
    body = lie(header, said, body)
    path.write_bytes(sealed(header, said, body))
    with pytest.raises(PackError, match=message) as error:
        read_pack(path)
    assert str(error.value).startswith(f"{path}: expected ")
    (finding,) = verify(path)
    assert not finding.ok
    assert finding.text == str(error.value)


@pytest.mark.parametrize(("value", "message"), [("0" * 64, "content of sha256 0000"), (7, "as 'sha256', met 7"),
                                                ("0" * 65, "64 hexadecimal"), ("A" * 64, "64 hexadecimal")])
def test_a_wrong_hash(value, message, path):
    put(path, condensed_with_real())
    header, said, body = split(path.read_bytes())
    path.write_bytes(joined(header, {**said, "sha256": value}, body))
    with pytest.raises(DataError, match=message):
        read_pack(path)


def test_one_content_has_one_file(path):
    """The same document and tensors in other words: keys in another order, a sign escaped."""
    put(path, condensed_with_real())
    header, said, body = split(path.read_bytes())
    size = path.stat().st_size - len(body) - 8
    reordered = {"__metadata__": {"protocore pack": dump(said)}, **dict(reversed(header.items()))}
    text = json.dumps(reordered, separators=(",", ":"))
    for other, message in ((text, "a header as packs are written, met the same in other words"),
                           (text.replace("statistics/sigma", "statistics/s\\u0069gma", 1), "a ledger of exactly")):
        path.write_bytes(framed(other.ljust(size), body))
        with pytest.raises(DataError, match=message):
            read_pack(path)


def test_lengths_must_add_up(path):
    labels = [0, 1, 1, 2, 4]
    tensors = store_of(Squeezed(SHAPE), labels).tensors()
    put(path, tensors, Squeezed(SHAPE))
    header, said, body = split(path.read_bytes())
    sizes = tensors["exemplars/lengths"].tolist()
    for value, message in ((sizes[0] + 1, "as the lengths add up"), (0, "above 0")):
        path.write_bytes(sealed(header, said, write_bytes("exemplars/lengths", 0, bytes([value]))(header, said, body)))
        with pytest.raises(DataError, match=message):
            read_pack(path)
    path.write_bytes(sealed(header, said, body))
    assert same_tensors(read_pack(path).tensors, tensors)


def test_labels_swapped_behind_the_hash(path):
    put(path, condensed_with_real())
    header, said, body = split(path.read_bytes())
    for first, second in ((0, 1), (1, 0)):
        body = write_bytes("coded exemplars/labels", first, bytes([second]))(header, said, body)
    path.write_bytes(joined(header, said, body))
    with pytest.raises(DataError, match="content of sha256"):
        read_pack(path)


def hostile(data: bytes) -> dict[str, bytes]:
    """Files that mean to hurt the reader rather than to deceive it."""
    header, said, body = split(data)
    meta = dump({"protocore pack": dump(said)})
    many = {f"statistics/{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(5000)}
    wide = {**said, "class names": [""] * 100_000}
    rows = {**said, "ledger": [["a", 0, 0]] * 20_000}
    groups = {f"g{i}": {"decoder": "x", "digest": "0" * 64, "origin": "real", "bytes": 16} for i in range(1500)}
    heads, at = {}, 0
    for name in groups:
        for key, shape in (("bytes", [1, *SHAPE]), ("labels", [1])):
            size = int(np.prod(shape))
            heads[f"{name}/{key}"] = {"dtype": "U8", "shape": shape, "data_offsets": [at, at + size]}
            at += size
    return {
        "empty": b"",
        "seven bytes": data[:7],
        "no header": bytes(8),
        "header of 2^63": (2**63).to_bytes(8, "little") + data[8:],
        "header of 2^64-1": b"\xff" * 8 + data[8:],
        "header over the limit": framed(b" " * (2**23 + 1), body),
        "header longer than the file": (len(data) - 7).to_bytes(8, "little") + data[8:],
        "not text": framed(b"\xff" * 100, body),
        "UTF-16": framed("{}".encode("utf-16"), body),
        "a list": framed("[]", body),
        "nothing of ours": framed("{}", b""),
        "metadata of two": framed(dump({**header, "__metadata__": {"protocore pack": dump(said), "x": ""}}), body),
        "a name twice": framed(f'{{"__metadata__":{meta},"a":1,"a":2}}', body),
        "metadata twice": framed(f'{{"__metadata__":{meta},"__metadata__":{meta}}}', b""),
        "deep lists": framed("[" * 500_000 + "]" * 500_000, body),
        "deep objects": framed('{"a":' * 200_000 + "1" + "}" * 200_000, body),
        "deep document": joined(header, {**said, "groups": json.loads('{"a":' * 90 + "1" + "}" * 90)}, body),
        "deep text of a document": framed(dump({"__metadata__": {"protocore pack": "[" * 1_000_000}}), b""),
        "flat lists": framed("[" + "[]," * 2_000_000 + "[]]", body),
        "open string": framed('{"' + '\\"' * 1_000_000, body),
        "backslashes": framed('{"' + "\\" * 1_000_001, body),
        "quotes": framed('"' * 2_000_000, body),
        "a long number": framed('{"a":' + "9" * 5_000_000 + "}", body),
        "many tensors": joined(many, said, b""),
        "many names": joined(header, wide, body),
        "many ledger rows": sealed(header, rows, body),
        "many groups": sealed(heads, {**said, "groups": groups}, bytes(at)),
        "half a surrogate": framed(dump({**header, "__metadata__": {"protocore pack": dump(said)}})
                                   .replace("statistics/sigma", "statistics/\\ud800"), body),
    }


def test_hostile_files_are_refused_soon_and_in_little_memory(path):
    put(path, condensed_with_real())
    for name, data in hostile(path.read_bytes()).items():
        path.write_bytes(data)
        size = len(data)
        del data
        tracemalloc.start()
        start = time.process_time()
        try:
            with pytest.raises(DataError) as error:
                read_pack(path)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert str(error.value).startswith(f"{path}: expected "), name
        assert len(str(error.value)) < 600, name
        assert ("given twice" in str(error.value)) == ("twice" in name), name
        assert time.process_time() - start < 4, name
        assert peak < 2**20 + 24 * size, name


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", ""):
        for look in (read_pack, verify):  # there is nothing that could be found damaged
            with pytest.raises(DataError, match="give the path of a pack") as error:
                look(tmp_path / name)
            assert not isinstance(error.value, PackError)


LYING_NUMBERS = ["0", "1", "-1", "2", "255", "65536", str(2**31), str(2**60), str(2**63), str(2**64), "9" * 40, "1.5",
                 "1e9", "1e999", "NaN", "true", "null", '"1"', "[]", "{}"]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One change, or a few: of bits, of bytes, of the header's words."""
    header_end = 8 + int.from_bytes(data[:8], "little")
    kind = rng.randrange(14)
    at = rng.randrange(len(data))
    if kind < 3:  # bits anywhere, in the header, in the tensors
        low, high = ((0, len(data)), (8, header_end), (header_end, len(data)))[kind]
        flipped = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            flipped[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 3:
        return data[:at]
    if kind == 4:
        return data[:at] + rng.randbytes(rng.choice((1, 8, 100))) + data[at:]
    if kind == 5:
        return data[:at] + data[at + rng.choice((1, 8, 100)):]
    if kind == 6:
        return data[:at] + data[at : at + 8] + data[at:]
    if kind == 7:
        return (rng.choice((0, 1, 2**23, 2**32, 2**62, 2**64 - 1, rng.randrange(2 * len(data))))).to_bytes(
            8, "little") + data[8:]
    if kind == 8:
        two = sorted(rng.sample(range(header_end, len(data)), 2))
        swapped = bytearray(data)
        swapped[two[0]], swapped[two[1]] = swapped[two[1]], swapped[two[0]]
        return bytes(swapped)
    text, body = data[8:header_end].decode(), data[header_end:]
    if kind in (9, 10):  # a number of the header
        places = [i for i, c in enumerate(text) if c.isdigit() and not text[i - 1].isalnum()]
        begin = rng.choice(places)
        end = begin
        while text[end].isalnum():
            end += 1
        lie = rng.choice([*LYING_NUMBERS, str(int(text[begin], 16) + 1)])
        return framed(text[:begin] + lie + text[end:], body)
    if kind == 11:  # a word of the header
        words = ["exemplars", "labels", "bytes", "F16", "U8", "I32", "shape", "dtype", "data_offsets", "real", "coded",
                 "sha256", "ledger", "version", "ant", "bee", "prototypes", "pixels", "__metadata__", "protocore pack"]
        new = rng.choice([*words, "", "\ud7ff", "[", "}"])
        return framed(text.replace(rng.choice(words), new, rng.choice((1, -1))), body)
    if kind == 12:  # depth
        begin, depth = rng.randrange(len(text)), rng.choice((1, 9, 3000))
        return framed(text[:begin] + "[" * depth + "]" * rng.choice((depth, 0)) + text[begin:], body)
    entry = text[text.index('"coded' if '"coded' in text else '"exemplars') :]  # a tensor twice
    entry = entry[: entry.index("}") + 1]
    return framed(text[:-1].rstrip().removesuffix("}") + "," + entry + "}", body)


@pytest.mark.parametrize(("kind", "count"), [("condensed and real", 2200),
                                             ("coded, of many sizes, with columns", 1300)])
def test_no_mutation_is_believed(kind, count, tmp_path):
    """Each is read as exactly what was written, or refused with a DataError."""
    codec, build = MEMORIES[kind]
    original = put(tmp_path / "memory.pack", build(), codec)
    data, target = (tmp_path / "memory.pack").read_bytes(), tmp_path / "mutated.pack"
    rng, refused, taken, peak, start = random.Random(count), 0, 0, 0, time.process_time()
    with target.open("wb") as file:
        for index in range(count):
            file.seek(0)
            file.write(mutated(data, rng))
            file.truncate()
            file.flush()
            traced = index % 8 == 0
            if traced:
                tracemalloc.start()
            try:
                read = read_pack(target)
            except DataError as error:
                refused += str(error).startswith(f"{target}: expected ")
            else:
                taken += same(read, original)
            if traced:
                peak = max(peak, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
    assert refused + taken == count
    assert refused > 0.9 * count
    assert peak < 2**19
    assert time.process_time() - start < 10


def test_no_sealed_mutation_breaks_the_reader(path):
    """Any value anywhere, with a right hash: refused, or a pack that is written and read again as it is."""
    rng = random.Random(1)
    put(path, condensed_with_real())
    data, taken = path.read_bytes(), 0
    values = [None, True, -1, 0, 1, 2, 3, 2**60, 1.5, "", "U8", "F64", "I64", "real", "coded", [], [1], [4, 4],
              [[]], {}, "0" * 64, ["a"] * 5]
    for _ in range(600):
        header, said, body = split(data)
        for _ in range(rng.choice((1, 1, 2))):
            place: dict | list = rng.choice((header, said))
            while True:
                key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
                if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.2:
                    break
                place = place[key]
            action = rng.random()
            if action < 0.7:
                place[key] = rng.choice(values)
            elif isinstance(place, dict) and action < 0.85:
                new = rng.choice(["x", "exemplars/bytes", "prototypes/bytes", "/bytes", "prototypes/x"])
                place[new] = place.pop(key)
            else:
                del place[key]
        path.write_bytes(sealed(header, said, body))
        try:
            read = read_pack(path)
        except DataError:
            continue
        taken += 1
        assert same(save_pack(path, read), read)
        summary(read)
    assert taken < 200


# -- verifying -------------------------------------------------------------------------------------------------


def test_verify_holds_the_codec_against_the_pack(path):
    put(path, store_of(Coarse(SHAPE), [0, 1]).tensors(), Coarse(SHAPE))
    assert all(f.ok for f in verify(path))
    assert "not decoded" in verify(path)[-1].text
    assert "2 coded exemplars decode with coarse" in verify(path, Coarse(SHAPE))[-1].text
    for wrong in (Pixels(SHAPE), Coarse((1, 4, 8))):
        last = verify(path, wrong)[-1]
        assert not last.ok
        assert "give the one that wrote them" in last.text
        assert f"met {wrong.spec} (" in last.text


def test_verify_finds_the_codec_once_the_pack_is_read(path):
    put(path, store_of(Coarse(SHAPE), [0, 1]).tensors(), Coarse(SHAPE))
    met = []

    def find(pack: packs.Pack) -> Codec:
        met.append(pack.info.method)
        return Coarse(pack.info.image_shape)

    assert "decode with coarse" in verify(path, find)[-1].text
    assert met == ["er"]
    (*good, bad) = verify(path, lambda pack: codec_told("coarse", pack.info.image_shape))
    assert all(f.ok for f in good)
    assert not bad.ok
    assert "from Python, as --codec knows no 'coarse'" in bad.text
    path.write_bytes(path.read_bytes()[:-1])
    assert [f.ok for f in verify(path, find)] == [False]
    assert met == ["er"]


def test_verify_decodes_every_exemplar(path):
    tensors = store_of(Squeezed(SHAPE), [0] * 5).tensors()
    tensors["exemplars/bytes"] = tensors["exemplars/bytes"].clone()
    tensors["exemplars/bytes"][-1] ^= 255  # the checksum of the last one
    put(path, tensors, Squeezed(SHAPE))
    assert all(f.ok for f in verify(path))
    assert [f.ok for f in verify(path, Squeezed(SHAPE))][-1] is False


def test_large_pictures_are_decoded_a_few_at_a_time(path):
    """However many there are: a short file may hold pictures that all together exceed the memory."""
    shape = (1, 512, 1024)
    met = []

    class Wide(Coarse):
        exemplar_bytes = 1

        def to_bytes(self, z):
            return [b"x"] * len(z)

        def from_bytes(self, stored):
            met.append(len(stored))
            return torch.zeros(len(stored), *shape)

    store = ExemplarStore(Wide(shape))
    store.add(torch.zeros(5, *shape, dtype=torch.uint8), torch.tensor([0, 0, 0, 1, 1]))
    pack = put(path, store.tensors(), Wide(shape))
    met.clear()
    assert verify(path, Wide(shape))[-1].ok
    assert met == [2, 2, 1]
    met.clear()
    images, labels = exemplars(pack, Wide(shape), "exemplars", most=2)
    assert met == [2, 2]
    assert images.shape == (4, *shape)
    assert labels.tolist() == [0, 0, 1, 1]


def test_too_little_memory_is_told(path, monkeypatch):
    put(path, store_of(Coarse(SHAPE), [0, 1]).tensors(), Coarse(SHAPE))

    def full(self, stored):
        raise MemoryError

    monkeypatch.setattr(Coarse, "from_bytes", full)
    last = verify(path, Coarse(SHAPE))[-1]
    assert not last.ok
    assert "not enough memory to decode them" in last.text


def test_exemplars_that_are_no_pixels_are_an_error_of_the_data(path):
    """A group may say that it was written by pixels and hold rows of another size."""
    pack = put(path, store_of(Coarse(SHAPE), [0, 1], "coded exemplars").tensors(), Coarse(SHAPE))
    group = replace(pack.info.groups["coded exemplars"], codec="pixels", digest=Pixels(SHAPE).digest)
    lying = packs.format.sealed(pack.tensors, replace(pack.info, groups={"coded exemplars": group}))
    with pytest.raises(DataError, match="coded exemplars do not decode"):
        exemplars(lying, Pixels(SHAPE), "coded exemplars")


@pytest.mark.parametrize("channels", [1, 3])
def test_the_header_of_a_jpeg_is_that_of_a_blank_of_its_size(channels, monkeypatch):
    """A small blank stands in for it, so that a file's word for the size takes no memory."""
    for height, width in ((1, 1), (8, 8), (32, 32), (28, 28), (33, 7), (224, 224), (300, 517), (1, 2000)):
        for quality in (1, 25, 100):
            codec = JPEG((channels, height, width), quality)
            file = codec.file(Image.new("L" if channels == 1 else "RGB", (width, height)))
            before, tables, start = codec._header
            assert file.startswith(before + tables + start)
            stored = file[len(before + tables + start) : -2]
            assert codec.restore(stored) == file
            assert Image.open(io.BytesIO(file)).size == (width, height)
    made, new = [], Image.new
    monkeypatch.setattr(Image, "new", lambda mode, size: made.append(size) or new(mode, size))
    assert len(JPEG((channels, 2000, 3000)).digest) == 64
    assert made == [(16, 16)]


@pytest.mark.parametrize("name", ["webp:²", "jpeg:٣", "vqgan,sweeps=²", "vqgan:4,sweeps=" + "9" * 5000,
                                  "webp:" + "9" * 5000, "pixels:²"])
def test_only_plain_digits_are_numbers(name):
    with pytest.raises(UserError, match="--codec"):
        codec_named(name, SHAPE)


def test_a_file_names_no_other_file(monkeypatch):
    opened = []
    monkeypatch.setattr("protocore.codecs.table.load", lambda *given: opened.append(given))
    monkeypatch.setattr(Path, "glob", lambda *given: opened.append(given))
    for name in ("vqgan:/etc/passwd", "vqgan:pipe:4", "diffusers:attacker/model", "diffusers", "taming", "taming:4",
                 "webp:²", "gif", "webp:0", "webp:101"):
        with pytest.raises(DataError):
            codec_told(name, (3, 32, 32))
    assert not opened
    monkeypatch.undo()
    for name in ("pixels", "webp", "webp:30", "jpeg", "jpeg:50", "vqgan", "vqgan:2"):
        assert codec_told(name, (3, 32, 32)).spec == name
    with pytest.raises(DataError, match=r"--codec vqgan:FILE:12 \(vqgan:12 alone"):
        codec_told("vqgan:12", (3, 32, 32))
    with pytest.raises(DataError, match=r"no weights ship for 5 channels.*--codec vqgan:FILE "):
        codec_told("vqgan", (5, 32, 32))


@pytest.mark.parametrize(("told", "way"), [
    ("vqgan", "--codec vqgan:FILE ("), ("vqgan:4,entropy", "--codec vqgan:FILE:4,entropy ("),
    ("vqgan,entropy", "--codec vqgan:FILE,entropy ("), ("webp:30", "--codec webp:30"), ("pixels", "--codec pixels"),
    ("diffusers", "--codec diffusers:FOLDER-OR-HUB-ID"), ("taming", "--codec taming:FOLDER"), ("mine", "from Python"),
])
def test_the_way_to_the_right_codec(told, way):
    assert way in way_to(told)


def test_verify_finds_values_that_are_not_finite(path):
    put(path, {"statistics/sigma": torch.tensor([float("nan")])})
    assert [f.text for f in verify(path) if not f.ok] == ["statistics/sigma holds values that are not finite"]


def test_exemplars_of_no_group(make):
    with pytest.raises(DataError, match="it has coded exemplars, real exemplars"):
        exemplars(make(condensed_with_real()), Pixels(SHAPE), "exemplars")


# -- merging ---------------------------------------------------------------------------------------------------


def by_class(pack: packs.Pack, codec: Codec, group: str) -> dict[str, list[bytes]]:
    made: dict[str, list[bytes]] = {}
    if group in pack.info.groups:
        tensors = pack.tensors
        flat = tensors[f"{group}/bytes"].numpy().tobytes()
        labels = tensors[f"{group}/labels"].tolist()
        sizes = tensors[f"{group}/lengths"].tolist() if f"{group}/lengths" in tensors else (
            [codec.exemplar_bytes] * len(labels))
        at = 0
        for label, size in zip(labels, sizes, strict=True):
            made.setdefault(pack.info.class_names[label], []).append(flat[at : at + size])
            at += size
    return made


any_codec = st.sampled_from([Pixels(SHAPE), Coarse(SHAPE), Squeezed(SHAPE)])
some_labels = st.lists(st.integers(0, 4), max_size=9)


@st.composite
def memories(draw, codec, groups=("exemplars", "coded exemplars"), seeds=3):
    tensors = {}
    for group in groups:
        labels = draw(some_labels)
        if labels:
            store = ExemplarStore(codec, group)
            filler = BalancedReservoir(store, 99)
            filler.offer(pictures(len(labels), draw(st.integers(0, seeds))), torch.tensor(labels))
            tensors |= filler.tensors() if group == "exemplars" else store.tensors()
    known = sorted(draw(st.sets(st.integers(0, 4))))
    return tensors | prototypes_of(known, draw(st.integers(0, 9)), draw(st.sampled_from(["float16"])))


@quick
@given(st.data(), any_codec, st.permutations([*NAMES, "fox"]), st.permutations([*NAMES, "gnu"]))
def test_merging_unites_classes_by_name(make, data, codec, names_a, names_b):
    a = make(data.draw(memories(codec)), codec, names_a)
    b = make(data.draw(memories(codec)), codec, names_b)
    merged = merge(a, b)
    assert merged.info.class_names[: len(names_a)] == tuple(names_a)
    assert set(merged.info.class_names) == {*names_a, *names_b}
    assert len(to_bytes(merged)) == merged.info.ledger.total
    mine, other = {}, {}
    for group in ("exemplars", "coded exemplars"):
        x, y, z = (by_class(pack, codec, group) for pack in (a, b, merged))
        expected = {name: x.get(name, []) + [e for e in y.get(name, []) if e not in x.get(name, [])]
                    for name in {**x, **y}}
        assert z == expected
        for counts, held in ((mine, x), (other, y)):
            for name, rows in held.items():
                counts[name] = counts.get(name, 0) + len(rows)
    x, y, z = (prototypes_by_class(pack) for pack in (a, b, merged))
    assert z.keys() == {**x, **y}.keys()
    for name, found in z.items():
        u, v = max(mine.get(name, 0), 1) * (name in x), max(other.get(name, 0), 1) * (name in y)
        wanted = (u * x.get(name, np.zeros(6)) + v * y.get(name, np.zeros(6))) / (u + v)
        assert np.array_equal(found, wanted.astype(np.float16))


def prototypes_by_class(pack: packs.Pack) -> dict[str, np.ndarray]:
    if "prototypes/labels" not in pack.tensors:
        return {}
    names = [pack.info.class_names[label] for label in pack.tensors["prototypes/labels"].tolist()]
    return dict(zip(names, pack.tensors["prototypes/features"].double().numpy(), strict=True))


@quick
@given(st.data(), any_codec)
def test_merging_with_itself_changes_nothing_but_counters(make, data, codec):
    pack = make(data.draw(memories(codec)), codec)
    again = merge(pack, pack)
    counters = {k for k in pack.tensors if k.endswith("/seen")}
    assert same_tensors({k: t for k, t in again.tensors.items() if k not in counters},
                        {k: t for k, t in pack.tensors.items() if k not in counters})
    assert all(torch.equal(again.tensors[k], 2 * pack.tensors[k]) for k in counters)


def test_one_picture_in_two_classes_is_an_exemplar_of_both(make):
    """Only what is the same picture of the same class is there once."""
    store, picture = ExemplarStore(Pixels(SHAPE)), pictures(1)
    store.add(picture, torch.tensor([0]))
    other = ExemplarStore(Pixels(SHAPE))
    other.add(picture.repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    merged = merge(make(store.tensors()), make(other.tensors()))
    assert merged.tensors["exemplars/labels"].tolist() == [0, 1]
    assert torch.equal(merged.tensors["exemplars/bytes"], picture.repeat(2, 1, 1, 1))


def test_the_classes_of_averaged_prototypes_are_told(make):
    a = make(prototypes_of([0, 1, 2], 1), names=["ant", "bee", "cat"])
    b = make(prototypes_of([0, 1], 2), names=["cat", "ant"])
    assert averaged(a, b) == ["ant", "cat"]
    assert averaged(a, a) == averaged(a, make({})) == averaged(make({}), a) == []
    c = make(prototypes_of([0, 1, 2], 1, "int8"), names=["ant", "bee", "cat"])
    assert averaged(c, c) == []
    assert averaged(c, b) == ["ant", "cat"]


def test_prototypes_in_int8_stay_so_when_packs_are_merged(make):
    a = make(prototypes_of([0, 1], 1, "int8"), Pixels(SHAPE), ["ant", "bee"])
    b = make(prototypes_of([0, 1], 2, "int8"), Pixels(SHAPE), ["bee", "cat"])
    merged = merge(a, b).tensors
    assert merged["prototypes/features"].dtype == torch.int8
    for row, (pack, of) in {0: (a, 0), 2: (b, 1)}.items():  # of one pack only: bit for bit
        for part in ("features", "steps"):
            assert torch.equal(merged[f"prototypes/{part}"][row], pack.tensors[f"prototypes/{part}"][of])

    def vector(tensors, row):
        return tensors["prototypes/features"][row].float() * tensors["prototypes/steps"][row].float()

    mean = (vector(a.tensors, 1) + vector(b.tensors, 0)) / 2  # no exemplars: equal weights
    assert float((vector(merged, 1) - mean).abs().max()) <= 0.51 * float(merged["prototypes/steps"][1])
    assert same_tensors(merge(a, a).tensors, a.tensors)
    half = make(prototypes_of([0, 1], 2), Pixels(SHAPE), ["bee", "cat"])
    assert merge(a, half).tensors["prototypes/features"].dtype == torch.float16


def test_a_merged_pack_is_a_memory(make, path):
    """Its file is right, and a reservoir a class goes on from it."""
    torch.manual_seed(0)
    sides = []
    for seed, names, labels in ((1, ["ant", "bee", "cat"], [0, 1, 2]), (2, ["dog", "cat", "ant"], [0, 1])):
        filler = BalancedReservoir(ExemplarStore(Coarse(SHAPE)), 4)
        for label in labels:
            filler.offer(pictures(10 + label, seed + label), torch.full((10 + label,), label))
        sides.append(make(filler.tensors() | {"statistics/sigma": torch.tensor([float(seed)])}, Coarse(SHAPE), names,
                          "er" if seed == 1 else "protocore"))
    merged = save_pack(path, merge(*sides))
    assert path.stat().st_size == merged.info.ledger.total
    assert all(f.ok for f in verify(path, Coarse(SHAPE)))
    assert merged.info.class_names == ("ant", "bee", "cat", "dog")
    assert merged.info.method == "er+protocore"
    assert merged.tensors["exemplars/seen"].tolist() == [10, 11, 12 + 11, 10]
    # σ is a root mean square over classes: three of the one, two of the other.
    assert merged.tensors["statistics/sigma"].item() == pytest.approx(((3 * 1 + 2 * 4) / 5) ** 0.5)
    again = BalancedReservoir(ExemplarStore(Coarse(SHAPE)), 8)
    again.load(merged.tensors)
    assert again.store.counts() == {0: 4, 1: 4, 2: 8, 3: 4}
    assert same_tensors(again.tensors(), {k: t for k, t in merged.tensors.items() if "exemplars" in k})


def test_merging_reservoirs_over_the_stream(make):
    sides = [make(filled(Reservoir, Pixels(SHAPE), 7)), make({"exemplars/seen": torch.tensor([0], dtype=torch.int32)})]
    assert merge(*sides).tensors["exemplars/seen"].tolist() == [30]
    assert merge(sides[0], sides[0]).tensors["exemplars/seen"].tolist() == [60]
    with pytest.raises(DataError, match="exemplars/seen counts the whole stream in one pack"):
        merge(sides[0], make(filled(BalancedReservoir, Pixels(SHAPE), 3)))


def test_packs_that_cannot_be_merged(make):
    one = make(store_of(Coarse(SHAPE), [0, 1]).tensors() | {"old network/w": torch.ones(2)}, Coarse(SHAPE))
    logits = store_of(Coarse(SHAPE), [0, 1], logits=torch.zeros(2, 5)).tensors()
    for other, message in (
        (make(store_of(Pixels(SHAPE), [0]).tensors()), "different codecs .*coarse .*pixels"),
        (make({}, Pixels((1, 8, 8))), "for images of"),
        (make(store_of(Coarse(SHAPE), [0]).tensors(), Coarse(SHAPE), ["ant", "ant"]), "'ant' 2 times"),
        (make({"old network/w": torch.zeros(2)}), "old network/w differs"),
        (make(logits, Coarse(SHAPE)), "kept in different ways"),
    ):
        with pytest.raises(DataError, match=message):
            merge(one, other)
    assert "old network/w" in merge(one, make({"old network/w": torch.ones(2)})).tensors
    wide = make(logits, Coarse(SHAPE))
    assert len(merge(wide, make(logits, Coarse(SHAPE))).tensors["exemplars/logits"]) == 2
    with pytest.raises(DataError, match="exemplars/logits has several values"):
        merge(wide, make(logits, Coarse(SHAPE), NAMES[::-1]))
    with pytest.raises(DataError, match="prototypes of 6 values"):
        merge(make(prototypes_of([0])), make(prototypes_of([0], dtype="float32")))


# -- pruning ---------------------------------------------------------------------------------------------------


def slowly(tensors: dict[str, torch.Tensor], codec: Codec, budget: int, path: Path) -> bytes | None:
    """The rule: with all groups, or without the last ones where more exemplars fit that way."""
    ranks = ["synthetic exemplars", "coded exemplars", "exemplars", "real exemplars"]
    groups = sorted({k.removesuffix("/bytes") for k in tensors if k.endswith("/bytes")}, key=ranks.index)
    classes = {label for g in groups for label in tensors[f"{g}/labels"].tolist()}
    best, most = None, -1
    for first in range(max(len(groups), 1), 0, -1):
        left = groups[:first]
        if {label for g in left for label in tensors[f"{g}/labels"].tolist()} == classes:
            found = one_by_one({k: t for k, t in tensors.items() if k.split("/")[0] not in groups[first:]}, left,
                               codec, budget, path)
            if found is not None and held(read_pack(path)) > most:
                best, most = found, held(read_pack(path))
    return best


def held(pack: packs.Pack) -> int:
    """Exemplars in all."""
    return sum(len(pack.tensors[f"{g}/labels"]) for g in pack.info.groups)


def one_by_one(tensors: dict[str, torch.Tensor], groups: list[str], codec: Codec, budget: int,
               path: Path) -> bytes | None:
    """A file is written after each exemplar that goes. None where the last of a class would."""
    kept = {g: list(range(len(tensors[f"{g}/labels"]))) for g in groups}
    labels = {g: tensors[f"{g}/labels"].tolist() for g in groups}
    while True:
        made = {k: t for k, t in tensors.items() if k.split("/")[0] not in groups}
        for g in groups:
            if not kept[g]:
                continue
            old = ExemplarStore(codec, g)
            old.load({k: t for k, t in tensors.items() if not k.endswith("/seen")})
            old.keep(torch.tensor(kept[g]))
            made |= old.tensors()
            if f"{g}/seen" in tensors:
                seen = dict(zip(sorted(set(labels[g])), tensors[f"{g}/seen"].tolist(), strict=True))
                left = sorted({labels[g][i] for i in kept[g]})
                made[f"{g}/seen"] = torch.tensor([seen[c] for c in left], dtype=torch.int32)
        put(path, made, codec)
        if path.stat().st_size <= budget:
            return path.read_bytes()
        members = {c: [(within, order, g, i) for order, g in enumerate(groups)
                       for within, i in enumerate(i for i in kept[g] if labels[g][i] == c)] for c in range(5)}
        largest = max(range(5), key=lambda c: (len(members[c]), c))
        if len(members[largest]) <= 1:
            return None
        *_, g, i = max(members[largest])
        kept[g].remove(i)


@quick
@given(st.data(), any_codec)
def test_pruning_drops_one_by_one_from_the_largest_class(make, tmp_path, data, codec):
    tensors = data.draw(memories(codec))
    pack = make(tensors, codec)
    share = data.draw(st.floats(0.3, 1))
    budget = int(share * pack.info.ledger.total)
    expected = slowly(tensors, codec, budget, tmp_path / "slow.pack")
    try:
        found = prune(pack, budget)
    except BudgetError:
        assert expected is None
        return
    if found.info.groups:  # without any left, the slow way does not know the decoder's shared bytes
        assert to_bytes(found) == expected
    assert found.info.ledger.total <= budget


@quick
@given(st.data(), any_codec)
def test_a_pruned_pack_keeps_its_classes_and_all_else(make, path, data, codec):
    pack = make(data.draw(memories(codec)), codec)
    with pytest.raises(BudgetError, match="--budget 1 bytes cannot hold this pack") as error:
        prune(pack, 1)
    least = int(str(error.value).split("Give --budget ")[1].split()[0])
    smallest = save_pack(path, prune(pack, least))
    assert path.stat().st_size == smallest.info.ledger.total == least
    if least < pack.info.ledger.total:
        with pytest.raises(BudgetError):
            prune(pack, least - 1)
    assert classes_of(smallest).tolist() == classes_of(pack).tolist()
    assert held(smallest) == len({label for g in pack.info.groups for label in pack.tensors[f"{g}/labels"].tolist()})
    for name in ("prototypes/features", "prototypes/labels"):
        if name in pack.tensors:
            assert torch.equal(smallest.tensors[name], pack.tensors[name])
    assert all(f.ok for f in verify(path, codec))


def test_a_group_goes_as_a_whole_where_more_exemplars_fit_without_its_header(make):
    coded = store_of(Pixels(SHAPE), [0, 1, 2, 3] * 3, "coded exemplars").tensors() | prototypes_of(range(4))
    real = store_of(Pixels(SHAPE), [0, 1, 2, 3] * 2, "real exemplars", seed=1).tensors()
    pack, alone = make(coded | real), make(coded)
    found = prune(pack, alone.info.ledger.total)
    assert to_bytes(found) == to_bytes(alone)
    counts = [held(prune(pack, budget)) for budget in range(alone.info.ledger.total, pack.info.ledger.total + 1, 20)]
    assert counts == sorted(counts)  # more bytes, no fewer exemplars
    only = make(coded | store_of(Pixels(SHAPE), [0, 1, 2, 4] * 2, "real exemplars", seed=1).tensors())
    assert "real exemplars" in prune(only, only.info.ledger.total - 1).info.groups
    with pytest.raises(BudgetError):  # the one class that it has alone keeps it there
        prune(only, alone.info.ledger.total)


def test_real_exemplars_go_before_the_condensed_one(make):
    pack = make(condensed_with_real())
    assert prune(pack, pack.info.ledger.total) is pack
    least = pack.info.ledger.total
    while True:
        try:
            last = prune(pack, least)
        except BudgetError:
            break
        assert to_bytes(prune(pack, last.info.ledger.total)) == to_bytes(last)  # a budget may be used up
        least = last.info.ledger.total - 1
        counts = torch.cat([last.tensors[f"{g}/labels"] for g in last.info.groups]).bincount()
        assert counts.max() - counts.min() <= 1
        if "real exemplars" in last.info.groups:
            assert len(last.tensors["real exemplars/seen"]) in (1, len(last.tensors["real exemplars/labels"].unique()))
    assert list(last.info.groups) == ["coded exemplars"]
    assert last.tensors["coded exemplars/labels"].tolist() == [0, 1, 2, 3]
    assert same_tensors({k: t for k, t in last.tensors.items() if "exemplars" not in k},
                        {k: t for k, t in pack.tensors.items() if "exemplars" not in k})


def test_a_pack_is_sealed_against_changes_of_mind(make, path):
    pack = make(condensed_with_real())
    with pytest.raises(DataError, match="content of sha256"):
        save_pack(path, replace(pack, info=replace(pack.info, class_names=("ant", "bee", "cat", "dog", "elk"))))
    assert not path.exists()
