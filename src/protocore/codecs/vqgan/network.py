"""The network: a convolutional encoder, the quantiser, a convolutional decoder."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from protocore.codecs.vqgan.config import VQGANConfig
from protocore.codecs.vqgan.quantiser import Quantiser


class Block(nn.Module):
    """x + 1x1(act(3x3(act(x)))); the last layer starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(width, width, 3, padding=1)
        self.mix = nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.mix.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.silu(self.spread(F.silu(x))))


def _blocks(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(Block(width) for _ in range(count)))


class Encoder(nn.Module):
    """Images (N, C, H, W), sides multiples of the factor, to latents (N, code_dim, H/f, W/f)."""

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        self.factor, width = config.factor, config.encoder_width
        low = width * 4 // 3
        self.linear = nn.Conv2d(config.patch, config.code_dim, 1)
        self.stem = nn.Conv2d(config.patch // 4, width, 3, padding=1)
        self.high = _blocks(width, config.blocks)
        self.down = nn.Conv2d(4 * width, low, 1)
        self.low = _blocks(low, config.blocks)
        self.out = nn.Conv2d(low, config.code_dim, 3, padding=1)
        nn.init.zeros_(self.out.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = images - 0.5
        y = self.high(self.stem(F.pixel_unshuffle(x, self.factor // 2)))
        y = self.low(self.down(F.pixel_unshuffle(y, 2)))
        return self.linear(F.pixel_unshuffle(x, self.factor)) + self.out(F.silu(y))


class DecoderNet(nn.Module):
    """Latents to images, not yet clamped to [0, 1]."""

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        self.factor, width = config.factor, config.width
        low = width * 4 // 3
        self.linear = nn.Conv2d(config.code_dim, config.patch, 1)
        self.stem = nn.Conv2d(config.code_dim, low, 3, padding=1)
        self.low = _blocks(low, config.blocks)
        self.up = nn.Conv2d(low, 4 * width, 1)
        self.high = _blocks(width, config.blocks)
        self.out = nn.Conv2d(width, config.patch // 4, 3, padding=1)
        nn.init.zeros_(self.out.weight)

    def forward(self, z: Tensor) -> Tensor:
        y = self.high(F.pixel_shuffle(self.up(self.low(self.stem(z))), 2))
        fine = F.pixel_shuffle(self.out(F.silu(y)), self.factor // 2)
        return F.pixel_shuffle(self.linear(z), self.factor) + fine + 0.5


class VQGAN(nn.Module):
    """The three parts; works on images whose sides are multiples of the factor."""

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quantiser = Quantiser(config)
        self.decoder = DecoderNet(config)
        # How often each code occurs (stages, codes), 1 being an even share: for entropy coding, where it is known.
        self.frequencies: Tensor | None = None
