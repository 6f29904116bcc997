"""Checkpoints of taming-transformers' VQGAN (a yaml and a ckpt), read without the library and without pickle code.

The modules carry the names of the published state dicts. The paper's own weights were not at hand: what is
tested is that names, shapes and arithmetic agree with an independent implementation of the same network.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import stat
import struct
import zipfile
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from protocore.decoders.base import Decoder, ImageShape
from protocore.decoders.bits import pack, packed_bytes, unpack
from protocore.decoders.padding import reflect_pad
from protocore.errors import DataError

_GROUPS = 32  # of every normalisation
_MAX_PARAMETERS = 400_000_000  # that a yaml can ask for; the published networks have less than 100 million
_MAX_YAML_BYTES = 1 << 16
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CELLS = 1 << 24  # distances held at once while searching the codebook
_PARTS = ("encoder.", "decoder.", "quantize.embedding.", "quant_conv.", "post_quant_conv.")
_TRAINERS = ("pytorch_lightning.", "lightning.", "lightning_fabric.", "omegaconf.")  # what else a ckpt names


class CodebookDecoder(Decoder):
    """A frozen network for images in [-1, 1] around one codebook (codes, D): stored are the indices.

    Grey pictures go through a network for colour as three equal channels, and come back as their mean.
    """

    def __init__(
        self, image_shape: ImageShape, model: nn.Module, codebook: Tensor, channels: int, factor: int
    ) -> None:
        super().__init__(image_shape)
        if image_shape[0] not in {1, channels} or min(image_shape) < 1:
            raise DataError(
                f"a decoder of {channels} channels cannot code pictures of shape {image_shape}: choose another"
            )
        self.model = model.eval().requires_grad_(False)
        self.codebook = codebook.detach()
        self.channels = channels
        self.factor = factor
        self._weights = weights_digest(model.state_dict())

    @abstractmethod
    def to_latents(self, images: Tensor) -> Tensor:
        """Images in [-1, 1], sides multiples of the factor, to latents before quantising."""

    @abstractmethod
    def to_images(self, z: Tensor) -> Tensor:
        """Quantised latents to images in about [-1, 1]."""

    @abstractmethod
    def decoding_weights(self) -> Iterable[Tensor]:
        """The weights, but for the codebook, that decoding needs."""

    def encode(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            raise DataError(f"pictures of shape {tuple(images.shape[1:])} met a decoder for {self.image_shape}")
        full = images.expand(-1, self.channels, -1, -1)
        return self.to_latents(reflect_pad(full * 2 - 1, self.factor))

    def quantise(self, z: Tensor) -> Tensor:
        return z + (self.lookup(self.indices(z)) - z).detach()

    def decode(self, z: Tensor) -> Tensor:
        channels, height, width = self.image_shape
        images = ((self.to_images(z)[..., :height, :width] + 1) / 2).clamp(0, 1)
        return images if channels == self.channels else images.mean(1, keepdim=True)

    @torch.no_grad()
    def indices(self, z: Tensor) -> Tensor:
        """The nearest codes (N, h, w) of latents (N, D, h, w)."""
        rows = z.permute(0, 2, 3, 1).flatten(0, 2)
        squares = self.codebook.square().sum(1)
        parts = rows.split(max(1, _CELLS // len(self.codebook)))
        found = [torch.addmm(squares, part, self.codebook.T, alpha=-2).argmin(1) for part in parts]
        return torch.cat(found).view(len(z), *z.shape[2:])

    def lookup(self, indices: Tensor) -> Tensor:
        return self.codebook[indices].permute(0, 3, 1, 2).contiguous()

    def to_bytes(self, z: Tensor) -> list[bytes]:
        return pack(self.indices(z).flatten(1).cpu().numpy(), len(self.codebook))

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        _, height, width = self.latent_shape
        indices = torch.from_numpy(unpack(stored, height * width, len(self.codebook)))
        return self.lookup(indices.view(-1, height, width).to(self.codebook.device))

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        _, height, width = self.image_shape
        return self.codebook.shape[1], -(-height // self.factor), -(-width // self.factor)

    @property
    def exemplar_bytes(self) -> int:
        _, height, width = self.latent_shape
        return packed_bytes(height * width, len(self.codebook))

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.name} {self._weights} {self.image_shape}".encode()).hexdigest()

    @property
    def shared_bytes(self) -> int:
        """Codebook and decoder as they are loaded; the encoder is needed only where new pictures are coded."""
        return sum(w.numel() * w.element_size() for w in (self.codebook, *self.decoding_weights()))


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and float32 values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class TamingConfig:
    """`ddconfig` with the codebook's `n_embed` and `embed_dim`, under the names of the yaml."""

    ch: int
    ch_mult: tuple[int, ...]
    num_res_blocks: int
    attn_resolutions: tuple[int, ...]
    z_channels: int
    resolution: int
    in_channels: int
    out_ch: int
    n_embed: int
    embed_dim: int

    @property
    def widths(self) -> list[int]:
        return [self.ch * m for m in self.ch_mult]

    @property
    def factor(self) -> int:
        return 2 ** (len(self.ch_mult) - 1)

    @property
    def parameters(self) -> int:
        """How many numbers `TamingModel` of it holds, without building one."""
        widths, top, blocks = self.widths, self.widths[-1], self.num_res_blocks
        middle = 2 * _block_size(top, top) + _attention_size(top)
        total = self.n_embed * self.embed_dim + 2 * middle + 2 * (top + widths[0])  # the last: norm_out
        for before, after, side in (
            (self.in_channels, self.ch, 3), (top, self.z_channels, 3), (self.z_channels, top, 3),
            (widths[0], self.out_ch, 3), (self.z_channels, self.embed_dim, 1), (self.embed_dim, self.z_channels, 1),
        ):  # fmt: skip
            total += _conv_size(before, after, side)
        for i, width in enumerate(widths):
            below, above = (widths[i - 1] if i else self.ch), widths[min(i + 1, len(widths) - 1)]
            total += _block_size(below, width) + _block_size(above, width)
            total += (2 * blocks - 1) * _block_size(width, width)
            total += blocks * _attention_size(width) * (self.resolution // 2**i in self.attn_resolutions)
            up = self.resolution // self.factor * 2 ** (len(widths) - 1 - i)  # differs where a half was rounded
            total += (blocks + 1) * _attention_size(width) * (up in self.attn_resolutions)
            total += _conv_size(width, width) * ((i > 0) + (i < len(widths) - 1))
        return total


def _conv_size(before: int, after: int, side: int = 3) -> int:
    return after * (before * side**2 + 1)


def _block_size(before: int, after: int) -> int:
    shortcut = 0 if before == after else _conv_size(before, after, 1)
    return 2 * (before + after) + _conv_size(before, after) + _conv_size(after, after) + shortcut


def _attention_size(width: int) -> int:
    return 2 * width + 4 * _conv_size(width, width, 1)


class _Block(nn.Module):
    """Two normalised convolutions beside a short cut, which is a 1 x 1 convolution where the width changes."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1 = _norm(before)
        self.conv1 = _conv3(before, after)
        self.norm2 = _norm(after)
        self.conv2 = _conv3(after, after)
        self.nin_shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(x)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(inner)))


class _Attention(nn.Module):
    """One head over all positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (part(normed).flatten(2).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return x + self.proj_out(mixed.reshape(x.shape))


class _Halve(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))  # the checkpoints were trained with zeros right and below only


class _Double(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = _conv3(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class _Level(nn.Module):
    """Blocks of one resolution, each followed by attention where the configuration asks for it."""

    def __init__(self, before: int, after: int, blocks: int, attention: bool) -> None:
        super().__init__()
        self.block = nn.ModuleList(_Block(before if i == 0 else after, after) for i in range(blocks))
        self.attn = nn.ModuleList(_Attention(after) for _ in range(blocks if attention else 0))

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.block):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        return x


class _DownLevel(_Level):
    def __init__(self, before: int, after: int, blocks: int, attention: bool, halve: bool) -> None:
        super().__init__(before, after, blocks, attention)
        self.downsample = _Halve(after) if halve else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.downsample(super().forward(x))


class _UpLevel(_Level):
    def __init__(self, before: int, after: int, blocks: int, attention: bool, double: bool) -> None:
        super().__init__(before, after, blocks, attention)
        self.upsample = _Double(after) if double else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.upsample(super().forward(x))


class _Middle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.block_1 = _Block(width, width)
        self.attn_1 = _Attention(width)
        self.block_2 = _Block(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(x)))


class _Encoder(nn.Module):
    def __init__(self, config: TamingConfig) -> None:
        super().__init__()
        widths, last = config.widths, len(config.widths) - 1
        self.conv_in = _conv3(config.in_channels, config.ch)
        self.down = nn.ModuleList(
            _DownLevel(
                widths[i - 1] if i else config.ch,
                widths[i],
                config.num_res_blocks,
                config.resolution // 2**i in config.attn_resolutions,
                i < last,
            )
            for i in range(last + 1)
        )
        self.mid = _Middle(widths[last])
        self.norm_out = _norm(widths[last])
        self.conv_out = _conv3(widths[last], config.z_channels)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv_in(images)
        for level in self.down:
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class _Decoder(nn.Module):
    def __init__(self, config: TamingConfig) -> None:
        super().__init__()
        widths, last = config.widths, len(config.widths) - 1
        smallest = config.resolution // config.factor
        self.conv_in = _conv3(config.z_channels, widths[last])
        self.mid = _Middle(widths[last])
        self.up = nn.ModuleList(
            _UpLevel(
                widths[min(i + 1, last)],
                widths[i],
                config.num_res_blocks + 1,
                smallest * 2 ** (last - i) in config.attn_resolutions,
                i > 0,
            )
            for i in range(last + 1)
        )
        self.norm_out = _norm(widths[0])
        self.conv_out = _conv3(widths[0], config.out_ch)

    def forward(self, z: Tensor) -> Tensor:
        x = self.mid(self.conv_in(z))
        for i in range(len(self.up) - 1, -1, -1):  # numbered from the finest level
            x = self.up[i](x)
        return self.conv_out(F.silu(self.norm_out(x)))


class _Codebook(nn.Module):
    def __init__(self, codes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, dim)


class TamingModel(nn.Module):
    """The whole network, under the names of the published state dicts."""

    def __init__(self, config: TamingConfig) -> None:
        super().__init__()
        self.encoder = _Encoder(config)
        self.decoder = _Decoder(config)
        self.quantize = _Codebook(config.n_embed, config.embed_dim)
        self.quant_conv = nn.Conv2d(config.z_channels, config.embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.z_channels, 1)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, width, eps=1e-6)


def _conv3(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1)


class Taming(CodebookDecoder):
    """The interface over a loaded taming VQGAN."""

    name = "taming"
    model: TamingModel

    def __init__(self, model: TamingModel, config: TamingConfig, image_shape: ImageShape) -> None:
        codebook = model.quantize.embedding.weight
        super().__init__(image_shape, model, codebook, config.in_channels, config.factor)
        self.config = config

    def to_latents(self, images: Tensor) -> Tensor:
        return self.model.quant_conv(self.model.encoder(images))

    def to_images(self, z: Tensor) -> Tensor:
        return self.model.decoder(self.model.post_quant_conv(z))

    def decoding_weights(self) -> Iterable[Tensor]:
        return (*self.model.decoder.parameters(), *self.model.post_quant_conv.parameters())


def load(config: Path | str, checkpoint: Path | str, image_shape: ImageShape | None = None) -> Taming:
    """A decoder from the yaml and the ckpt of a published model; `DataError` names what does not fit."""
    read = read_config(Path(config))
    with torch.device("meta"):
        model = TamingModel(read)
    model.load_state_dict(_fitting(Path(checkpoint), model.state_dict()), assign=True)
    return Taming(model, read, image_shape or (read.in_channels, read.resolution, read.resolution))


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
    if any(width % _GROUPS for width in (config.ch, *config.widths)):
        raise DataError(f"{path}: ch is {config.ch}: widths must be multiples of {_GROUPS}")
    if config.in_channels != config.out_ch:
        raise DataError(f"{path}: in_channels {config.in_channels} and out_ch {config.out_ch} differ")
    if config.parameters > _MAX_PARAMETERS:
        raise DataError(f"{path}: asks for {config.parameters} parameters, more than {_MAX_PARAMETERS}: "
                        f"look at ch, ch_mult, num_res_blocks, n_embed and embed_dim")
    return config


def _fitting(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
