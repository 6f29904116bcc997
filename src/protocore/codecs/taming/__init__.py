"""Checkpoints of taming-transformers' VQGAN (a yaml and a ckpt), read without the library and without pickle code.

The modules carry the names of the published state dicts. The paper's own weights were not at hand: what is
tested is that names, shapes and arithmetic agree with an independent implementation of the same network.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from protocore.codecs.codebook import CodebookCodec
from protocore.codecs.taming.network import TamingConfig, TamingModel
from protocore.codecs.taming.reading import fitting, read_config
from protocore.pictures import ImageShape

__all__ = ["Taming", "TamingConfig", "TamingModel", "load", "read_config"]


class Taming(CodebookCodec):
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
    """A codec from the yaml and the ckpt of a published model; `DataError` names what does not fit."""
    read = read_config(Path(config))
    with torch.device("meta"):
        model = TamingModel(read)
    model.load_state_dict(fitting(Path(checkpoint), model.state_dict()), assign=True)
    return Taming(model, read, image_shape or (read.in_channels, read.resolution, read.resolution))
