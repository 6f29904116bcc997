"""The yaml and the ckpt of a VQGAN, read under limits and without running pickle code."""

from __future__ import annotations

import math
import pickle
import stat
import struct
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from protocore.codecs.taming.network import GROUPS, TamingConfig
from protocore.errors import DataError

_MAX_PARAMETERS = 400_000_000  # that a yaml can ask for; the published networks have less than 100 million
_MAX_YAML_BYTES = 1 << 16
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PARTS = ("encoder.", "decoder.", "quantize.embedding.", "quant_conv.", "post_quant_conv.")
_TRAINERS = ("pytorch_lightning.", "lightning.", "lightning_fabric.", "omegaconf.")  # what else a ckpt names


def read_config(path: Path) -> TamingConfig:
    """`model.params` of a yaml for taming.models.vqgan.VQModel."""
    whole = _read_yaml(path)
    try:
        params = whole["model"]["params"]
        network = params["ddconfig"]
        if network.get("double_z") or "n_embed" not in params:
            raise DataError(f"{path}: it describes no VQModel (double_z, or no n_embed): give the yaml of a VQGAN")
        for option, meant in (("resamp_with_conv", True), ("attn_type", "vanilla"), ("tanh_out", False)):
            if network.get(option, meant) != meant:
                raise DataError(f"{path}: {option} is {_shown(network[option])}, but only {meant!r} is known here")
        target = whole["model"].get("target")
        if isinstance(target, str) and target.endswith("GumbelVQ"):
            raise DataError(f"{path}: GumbelVQ has no nearest-code quantiser; only VQModel can be read")
        source = {**network, "n_embed": params["n_embed"], "embed_dim": params["embed_dim"]}
        values = {field.name: source[field.name] for field in fields(TamingConfig)}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: lacks {error}: expected model.params with ddconfig, n_embed, embed_dim") from error
    return _checked_config(path, values)


def _read_yaml(path: Path) -> Any:
    try:
        _require_file(path)
        with path.open("rb") as file:
            raw = file.read(_MAX_YAML_BYTES + 1)
        if len(raw) > _MAX_YAML_BYTES:
            raise DataError(f"{path}: more than {_MAX_YAML_BYTES} bytes: give the yaml of a VQGAN")
        return yaml.load(raw, _Yaml)
    except (OSError, yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError) as error:
        # the last four: what the library makes of odd numbers, dates and tags
        told = str(error)[:300]
        raise DataError(f"{path}: cannot be read as yaml ({told}): give the model's configuration") from error


class _Yaml(yaml.SafeLoader):
    """Without merge keys: through them a few hundred bytes unfold to gigabytes."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("merge keys, <<, are not read here")
        super().flatten_mapping(node)


def _shown(value: object, inner: bool = False) -> str:
    """A stranger's value in a line: aliases make a list of a short yaml as long as they like."""
    if isinstance(value, list) and not inner:
        return f"[{', '.join([_shown(item, True) for item in value[:8]] + ['...'] * (len(value) > 8))}]"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, str | int | float):
        return repr(value[:40] if isinstance(value, str) else value)
    return f"a {type(value).__name__}"


def _require_file(path: Path) -> None:
    """A pipe may never answer, a device never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError(f"{path}: cannot be read: a folder, pipe or device, not a file")


def _checked_config(path: Path, values: Mapping[str, Any]) -> TamingConfig:
    """Numbers of a size that a network can have, so that building it is quick."""
    lists = {name: tuple(values[name]) if isinstance(values[name], list) else None
             for name in ("ch_mult", "attn_resolutions")}
    for name, value in {**values, **lists}.items():
        numbers = value if isinstance(value, tuple) else (value,)
        limit = 1 << 20 if name == "n_embed" else 1 << 14
        if not all(type(n) is int and 1 <= n <= limit for n in numbers) or len(numbers) > 16:
            wanted = f"a list of numbers in 1..{limit}" if name in lists else f"a number in 1..{limit}"
            raise DataError(f"{path}: {name} is {_shown(values[name])}, not {wanted}")
    config = TamingConfig(**{**values, **lists})
    if not config.ch_mult or config.num_res_blocks > 64 or config.n_embed < 2:
        raise DataError(f"{path}: no levels, fewer than 2 codes, or more than 64 blocks a level")
    if any(width % GROUPS for width in (config.ch, *config.widths)):
        raise DataError(f"{path}: ch is {config.ch}: widths must be multiples of {GROUPS}")
    if config.in_channels != config.out_ch:
        raise DataError(f"{path}: in_channels {config.in_channels} and out_ch {config.out_ch} differ")
    if config.parameters > _MAX_PARAMETERS:
        raise DataError(f"{path}: asks for {config.parameters} parameters, more than {_MAX_PARAMETERS}: "
                        f"look at ch, ch_mult, num_res_blocks, n_embed and embed_dim")
    return config


def fitting(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that the network needs, as float32; other parts of a checkpoint (loss, optimiser) are left."""
    found = _state_dict(path)
    for name, model in expected.items():
        tensor = found.get(name)
        if not isinstance(tensor, Tensor):
            raise DataError(f"{path}: lacks {name}: another model than its yaml describes")
        if tensor.shape != model.shape or tensor.dtype not in _FLOATS:
            raise DataError(
                f"{path}: {name} is {tensor.dtype} {tuple(tensor.shape)}, but its yaml says {tuple(model.shape)}"
            )
        if not _is_stored(tensor):
            raise DataError(f"{path}: {name} claims more values than the file holds: damaged, or made to fill memory")
        if not math.isfinite(float(tensor.sum(dtype=torch.float64))):
            raise DataError(f"{path}: {name} holds values that are not finite: damaged")
    extra = sorted(n for n in found if isinstance(n, str) and n.startswith(_PARTS) and n not in expected)
    if extra:
        raise DataError(f"{path}: has {_some(extra)}, which its yaml does not describe")
    wanted = sum(found[name].numel() * found[name].element_size() for name in expected)
    if wanted > path.stat().st_size:  # tensors that share one storage
        raise DataError(f"{path}: its weights would take {wanted} bytes, more than the file has: not a model's own")
    return {name: found[name].float().contiguous() for name in expected}


def _is_stored(tensor: Tensor) -> bool:
    """Every value is there: not one value repeated by a stride of 0, not sparse, not a shape alone."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def _some(names: Iterable[str]) -> str:
    return ", ".join(name[:80] for name in sorted(names)[:3])


def _state_dict(path: Path) -> Mapping[str, Any]:
    try:
        _require_file(path)
        _refuse_swelling(path)
        with _inert(path):
            whole = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): give the model's checkpoint") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError,
            IndexError, struct.error, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: damaged, or no checkpoint that can be read without running its code "
            f"({type(error).__name__}): copy it again, or save its state_dict alone"
        ) from error
    found = whole.get("state_dict", whole) if isinstance(whole, Mapping) else None
    if not isinstance(found, Mapping):
        raise DataError(f"{path}: holds no state_dict")
    return found


def _refuse_swelling(path: Path) -> None:
    """torch.save does not compress. A zip that does, or whose entries overlap, may unfold to a multiple of its size."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > path.stat().st_size:
            raise DataError(f"{path}: would unfold to {size} bytes, more than the file has: save its state_dict again")


class _Inert:
    """Stands for a class of the training library that a checkpoint mentions; takes anything, does nothing."""

    def __init__(self, *_: object) -> None:
        """What it is made of is dropped."""

    def __setstate__(self, _: object) -> None:
        """Its state is dropped."""


def _inert(path: Path) -> AbstractContextManager[Any]:
    """Lightning writes its own classes beside the weights: let the safe reader pass over these, and no others."""
    look = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)  # torch 2.6
    if look is None or not zipfile.is_zipfile(path):
        return nullcontext()
    names = look(path)
    others = [name for name in names if not name.startswith(_TRAINERS)]
    if others:
        raise DataError(
            f"{path}: would run {_some(others)}, which weights do not need: "
            f"save its state_dict alone, if you trust it"
        )
    return torch.serialization.safe_globals([(_Inert, name) for name in names])
