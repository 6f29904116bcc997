"""The network of taming-transformers' VQGAN; its modules carry the names of the published state dicts."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 32  # of every normalisation


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
    return nn.GroupNorm(GROUPS, width, eps=1e-6)


def _conv3(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1)
