"""Weights on disk: safetensors with the configuration and a hash, written whole and read with suspicion.

Kernels and codebooks are int8 with a float16 step for each of their first dimension, all else is float16.
"""

from __future__ import annotations

import hashlib
import json
import stat
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from protocore.codecs.int8 import to_int8
from protocore.codecs.vqgan.config import VQGANConfig
from protocore.codecs.vqgan.network import VQGAN
from protocore.errors import DataError, UserError
from protocore.files import serialise, write_atomic

FORMAT = "protocore-vqgan"
VERSION = 2
SUFFIX = ".safetensors"
FREQUENCIES = "frequencies"  # a tensor of the file that a model may do without
STEP = "/step"  # behind the name of an int8 tensor: what 1 of it is worth
MAX_FILE_BYTES = 256 * 2**20
_WEIGHTS = Path(__file__).parent.parent / "weights"
_SHIPPED = {1: "vqgan-grey.safetensors", 3: "vqgan-colour.safetensors"}


def stored(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are written; what came from a file goes back unchanged."""
    kept: dict[str, Tensor] = {}
    for name, weight in weights.items():
        weight = weight.detach().to("cpu", torch.float32)
        if weight.ndim > 1 and name != FREQUENCIES:
            rows, kept[name + STEP] = to_int8(weight.flatten(1))
            kept[name] = rows.view(weight.shape)
        else:
            kept[name] = weight.half().contiguous()
    return kept


def restored(kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 weights that `stored` stands for."""
    return {name: (tensor.flatten(1).float() * kept[name + STEP].float()[:, None]).view(tensor.shape)
            if name + STEP in kept else tensor.float()
            for name, tensor in kept.items() if not name.endswith(STEP)}


def stored_bytes(weights: Iterable[Tensor]) -> int:
    """What some weights take in such a file, its header apart."""
    return sum(w.numel() + 2 * len(w) if w.ndim > 1 else 2 * w.numel() for w in weights)


def weights_digest(model: VQGAN) -> str:
    """SHA-256 of a model as `save` stores it, whatever the pictures and the stages in use."""
    return _weights_digest(model.config, stored(model.state_dict()))


def _weights_digest(config: VQGANConfig, kept: Mapping[str, Tensor]) -> str:
    """SHA-256 over the configuration and what is stored of the weights, in the order of their names."""
    digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode())
    for name in sorted(kept):
        tensor = kept[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def save(model: VQGAN, path: Path) -> None:
    """Write the weights, the configuration beside them; the file appears whole or not at all."""
    tensors = model.state_dict() | ({} if model.frequencies is None else {FREQUENCIES: model.frequencies})
    lost = sorted(k for k, v in tensors.items() if not bool(torch.isfinite(v).all()))
    weights = {} if lost else stored(tensors)
    lost += sorted(k.removesuffix(STEP) for k, v in weights.items()
                   if v.is_floating_point() and not bool(torch.isfinite(v).all()))
    if lost:
        raise DataError(f"{path}: float16 cannot hold {', '.join(lost)}: training has diverged")
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": json.dumps(asdict(model.config), sort_keys=True),
        "sha256": _weights_digest(model.config, weights),
    }
    write_atomic(path, serialise(weights, header))


def check_out(path: Path) -> None:
    """Tell before a long training what would fail, or overwrite something, when its files are written."""
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: the weights need a name that ends in {SUFFIX}, for example decoder{SUFFIX} "
                        f"(a report goes to .json and a picture to .png beside them)")
    trial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # as long as the name that `write_atomic` takes
    try:
        for written in (path, path.with_suffix(".json"), path.with_suffix(".png")):
            if written.is_dir():
                raise UserError(f"{written}: a folder, but a file is to be written there: choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        raise UserError(f"{path}: cannot be written ({why}): choose another place") from None


def load_model(path: Path) -> VQGAN:
    """Read what `save` wrote; anything else raises `DataError` naming the file."""
    raw = _read(path)
    header = _header(path, raw)
    config = _config(path, header)
    try:
        weights = load_tensors(raw)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}): copy or train it again") from error
    with torch.device("meta"):
        model = VQGAN(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    expected = {name: (torch.int8 if len(shape) > 1 else torch.float16, shape) for name, shape in shapes.items()}
    expected |= {name + STEP: (torch.float16, shape[:1]) for name, shape in shapes.items() if len(shape) > 1}
    if FREQUENCIES in weights:
        expected[FREQUENCIES] = torch.float16, torch.Size((config.stages, config.codes))
    if weights.keys() != expected.keys():
        lacks, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
        raise DataError(f"{path}: lacks tensors {lacks}, extra tensors {extra}: not the file its header says")
    for name, tensor in weights.items():
        dtype, shape = expected[name]
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            raise DataError(f"{path}: {name} is {tensor.dtype} {tuple(tensor.shape)}, but its header says "
                            f"{str(dtype).removeprefix('torch.')} {tuple(shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{path}: {name} holds values that are not finite: damaged")
    if _weights_digest(config, weights) != header.get("sha256"):
        raise DataError(f"{path}: the weights do not match their hash: damaged, copy or train it again")
    frequencies = weights.pop(FREQUENCIES, None)
    if frequencies is not None and not bool((frequencies > 0).all()):
        raise DataError(f"{path}: {FREQUENCIES} must be above zero: damaged")
    with torch.random.fork_rng(devices=[]):  # a file that is read must not move the caller's random numbers
        model = VQGAN(config)
    model.load_state_dict(restored(weights))
    model.quantiser.seed_averages()
    model.frequencies = None if frequencies is None else frequencies.float()
    return model


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe may never answer, a device never end
            raise DataError(f"{path}: a folder, pipe or device, not a file: give a file of `decoder train`")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    if len(raw) > MAX_FILE_BYTES:
        raise DataError(f"{path}: more bytes than such weights may have ({MAX_FILE_BYTES}): give another file")
    return raw


def _header(path: Path, raw: bytes) -> dict[str, str]:
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise DataError(f"{path}: not a safetensors file, or cut short ({len(raw)} bytes)")
    try:
        header = json.loads(raw[8 : 8 + length]).get("__metadata__")
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: its safetensors header cannot be read ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{path}: safetensors, but not a VQGAN of ours: give a file of `decoder train`")
    if header.get("version") != str(VERSION):
        raise DataError(f"{path}: version {header.get('version')!r}, but only version {VERSION} can be read; train it "
                        "again, or use the version of protocore that wrote it")
    return header


def _config(path: Path, header: Mapping[str, str]) -> VQGANConfig:
    try:
        values = json.loads(header["config"])
        if set(values) != {field.name for field in fields(VQGANConfig)}:
            raise DataError(f"{path}: unknown or missing configuration fields: {sorted(values)}")
        return VQGANConfig(**values)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: its configuration cannot be read ({error})") from error


def shipped(channels: int) -> Path:
    """The weights inside the package: 1 for grey pictures, 3 for colour."""
    if channels not in _SHIPPED:
        raise DataError(f"no weights ship for {channels} channels: train some with `protocore decoder train`")
    return _WEIGHTS / _SHIPPED[channels]
