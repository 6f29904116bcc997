"""Files that the program writes itself: packs, learners, results, decoders; made by small runs on the digits."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutate import Raw, damaged_bytes, damaged_json, dumped
from fuzz.tensors import apart, damaged_file, damaged_tensors, laid_out, together

_RUNS = (("er", "--codec", "webp"), ("der",), ("protocore", "--codec", "vqgan:2,entropy", "--real", "1"), ("fecam",))
_SMALL = ("--tasks", "2", "--images-per-class", "6", "--epochs", "1", "--spc", "2", "--backbone", "mlp", "--width", "4")
_PACK = "protocore pack"


@cache
def _written() -> dict[str, list[bytes]]:
    """What some small runs leave, by the names of the files."""
    from protocore.cli import main

    found: dict[str, list[bytes]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method, *more in _RUNS:
            out, said = Path(folder) / method, io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = main(["run", method, "digits", *more, *_SMALL, "--out", str(out), "--quiet", "--no-figures"])
            if code:
                raise RuntimeError(f"no run of {method}: {said.getvalue()}")
            for path in out.iterdir():
                if path.is_file():
                    found.setdefault(path.name, []).append(path.read_bytes())
    return found


def packs() -> list[bytes]:
    return _written()["memory.pack"]


def learners() -> list[bytes]:
    return _written()["learner.safetensors"]


def results() -> list[bytes]:
    return _written()["result.json"]


@cache
def decoders() -> list[bytes]:
    import torch

    from protocore.codecs.vqgan.config import VQGANConfig
    from protocore.codecs.vqgan.files import save
    from protocore.codecs.vqgan.network import VQGAN

    torch.manual_seed(0)
    model = VQGAN(VQGANConfig(channels=1, factor=2, codes=4, stages=2, code_dim=3, code_rank=2, width=8,
                              encoder_width=8,
                              blocks=0, beam=2))
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for model.frequencies in (None, torch.ones(2, 4)):
            save(model, Path(folder) / "decoder.safetensors")
            made.append((Path(folder) / "decoder.safetensors").read_bytes())
    return made


# -- reading


@cache
def _codec(name: str, shape: tuple[int, int, int]) -> Any:
    from protocore.codecs import codec_told

    return codec_told(name, shape)


def read_pack(path: Path) -> Iterator[str]:
    """Everything that the commands about packs do: verify, inspect, prune, merge."""
    from protocore.errors import UserError
    from protocore.memory.pack import merge, prune, read_pack, summary, to_bytes, verify

    def codec_of(pack: Any) -> Any:
        names = sorted({group.codec for group in pack.info.groups.values()})
        return _codec(names[0], pack.info.image_shape) if names else None

    for finding in verify(path, codec_of):
        yield finding.text
    pack = read_pack(path)
    summary(pack)
    with contextlib.suppress(UserError):
        to_bytes(merge(pack, _sound_pack()))
    with contextlib.suppress(UserError):
        to_bytes(merge(_sound_pack(), pack))
    with contextlib.suppress(UserError):
        to_bytes(prune(pack, pack.info.ledger.total - 20))


@cache
def _sound_pack() -> Any:
    from protocore.memory.pack import read_pack

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound.pack"
        path.write_bytes(packs()[0])
        return read_pack(path)


def read_learner(path: Path) -> None:
    from protocore import Learner

    Learner.load(path)


def read_result(path: Path) -> Iterator[str]:
    """As `protocore show` does, which draws every table of it."""
    from protocore.cli import main
    from protocore.errors import UserError

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(["show", "--all", str(path)])
    if code not in (0, 2):
        raise RuntimeError(f"exit {code}")
    for text in (out.getvalue(), errors.getvalue()):
        yield from filter(None, text.split("\n"))
    if code == 2:
        raise UserError(errors.getvalue())


def read_decoder(path: Path) -> None:
    from protocore.codecs.vqgan import load
    from protocore.errors import UserError

    load(path, (1, 5, 6))
    with contextlib.suppress(UserError):  # only some files say how often each code occurs
        load(path, (1, 5, 6), entropy=True)


# -- damage


def damaged_result(data: bytes, draw: Random) -> bytes:
    if draw.random() < 0.15:
        return damaged_bytes(data, draw)
    try:
        return dumped(damaged_json(json.loads(data), draw)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return damaged_bytes(data, draw)


def damaged_pack(data: bytes, draw: Random) -> bytes:
    return damaged_document(data, draw, _PACK, sealed_pack)


def damaged_learner(data: bytes, draw: Random) -> bytes:
    return damaged_document(data, draw, "protocore", sealed_learner)


def damaged_decoder(data: bytes, draw: Random) -> bytes:
    return damaged_document(data, draw, "config", sealed_decoder)


Seal = Callable[[dict[str, Any], dict[str, bytes], Any, bool],
                bytes]  # header, tensors, document, whether it was changed


def damaged_document(data: bytes, draw: Random, key: str, seal: Seal) -> bytes:
    """Damage to a file that holds a JSON document at `key` of its metadata; mostly sealed again."""
    kind, parts = draw.random(), apart(data)
    if kind < 0.15 or parts is None:
        return damaged_bytes(data, draw)
    if kind < 0.3:
        return damaged_file(data, draw)
    header, tensors = parts
    try:
        document = json.loads(header["__metadata__"][key])
        if kind < 0.75:
            document = damaged_json(document, draw)
        if kind > 0.65:
            header, tensors = damaged_tensors(header, tensors, draw)
        return seal(header, tensors, document, kind < 0.75)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # damaged before
        return damaged_bytes(data, draw)


def _dump(value: Any) -> str:
    """As packs are written, where there is no raw text within."""
    if _has_raw(value):
        return dumped(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _has_raw(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_raw, value.values()))
    return isinstance(value, Raw) or (isinstance(value, list) and any(map(_has_raw, value)))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def sealed_pack(header: dict[str, Any], tensors: dict[str, bytes], document: Any, changed: bool) -> bytes:
    """With the ledger (where it was not the damage itself) and the hash that belong to this content."""
    rows = laid_out({k: v for k, v in header.items() if k != "__metadata__"}, tensors)
    told: list[Any] = []
    for name in sorted(tensors):
        shape = rows[name]["shape"]
        told.append([name, len(tensors[name]), shape[0] if shape else 1])
    was = json.loads(header["__metadata__"][_PACK]).get("ledger")
    own = isinstance(document, dict) and (not changed or document.get("ledger") == was)
    size, met, text = -1, 0, b""
    while size != met:
        size = met
        if own:
            document["ledger"] = [*told, ["file header", size, 1]]
        if isinstance(document, dict) and document.get("sha256") is not None:
            total = hashlib.sha256(_encoded(_dump({k: v for k, v in document.items() if k != "sha256"})))
            for name in sorted(tensors):
                total.update(_encoded(_dump([name, rows[name]["dtype"], rows[name]["shape"]])) + tensors[name])
            document["sha256"] = total.hexdigest()
        text = _encoded(_dump({**rows, "__metadata__": {_PACK: _dump(document)}}))
        text += b" " * (-len(text) % 8)
        met = 8 + len(text)
    body = b"".join(tensors[name] for name in rows)
    return len(text).to_bytes(8, "little") + text + body


_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
          "I16": "int16",
          "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool"}


def sealed_learner(header: dict[str, Any], tensors: dict[str, bytes], document: Any, changed: bool) -> bytes:
    text = dumped(document)
    total = hashlib.sha256(_encoded(text))
    for name in sorted(tensors):
        row = header[name]
        total.update(_encoded(f"\n{name} torch.{_TYPES[row['dtype']]} {tuple(row['shape'])}\n") + tensors[name])
    meta = {"__metadata__": {"protocore": text, "sha256": total.hexdigest()}}
    return together(laid_out({**header, **meta}, tensors), tensors)


def sealed_decoder(header: dict[str, Any], tensors: dict[str, bytes], document: Any, changed: bool) -> bytes:
    total = hashlib.sha256(_encoded(json.dumps(document, sort_keys=True) if not _has_raw(document)
                                    else dumped(document)))
    for name in sorted(tensors):
        total.update(_encoded(f"{name} {tuple(header[name]['shape'])}") + tensors[name])
    meta = {**header["__metadata__"], "config": dumped(document), "sha256": total.hexdigest()}
    return together(laid_out({**header, "__metadata__": meta}, tensors), tensors)
