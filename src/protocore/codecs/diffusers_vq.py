"""diffusers' VQModel, from a folder or a hub id. The library is an extra and is imported only here, when used."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from protocore.codecs.codebook import CodebookCodec
from protocore.errors import DataError, UserError
from protocore.pictures import ImageShape


class DiffusersVQ(CodebookCodec):
    """The interface over a loaded VQModel."""

    name = "diffusers"
    model: Any

    def __init__(self, model: Any, image_shape: ImageShape) -> None:
        config = model.config
        if config.in_channels != config.out_channels:
            raise DataError(f"a VQModel from {config.in_channels} to {config.out_channels} channels codes no pictures")
        factor = 2 ** (len(config.block_out_channels) - 1)
        super().__init__(image_shape, model, model.quantize.embedding.weight, config.in_channels, factor)
        self._spatial = config.norm_type == "spatial"

    def to_latents(self, images: Tensor) -> Tensor:
        return self.model.encode(images).latents

    def to_images(self, z: Tensor) -> Tensor:
        """VQModel.decode without its own search for the nearest codes, which `quantise` has done."""
        return self.model.decoder(self.model.post_quant_conv(z), z if self._spatial else None)

    def decoding_weights(self) -> Iterable[Tensor]:
        return (*self.model.decoder.parameters(), *self.model.post_quant_conv.parameters())


def load(source: Path | str, image_shape: ImageShape | None = None, subfolder: str | None = None) -> DiffusersVQ:
    """A codec from a folder of `save_pretrained` or a hub id; safetensors only."""
    library = _library()
    if not Path(source).is_dir() and (isinstance(source, Path) or Path(source).is_absolute() or source[:1] == "."):
        raise DataError(f"{source}: no such folder: give a folder of VQModel.save_pretrained, or a hub id")
    try:
        model, report = library.VQModel.from_pretrained(
            str(source), subfolder=subfolder, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{source}: cannot be loaded as a VQModel ({reason[0]})") from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = [str(name) for name in report.get(what, [])]
        if names:
            raise DataError(f"{source}: no VQModel, or damaged: {what.replace('_', ' ')} {', '.join(names[:3])}")
    side = model.config.sample_size
    return DiffusersVQ(model.float(), image_shape or (model.config.in_channels, side, side))


def _library() -> Any:
    try:
        return importlib.import_module("diffusers")
    except ImportError as error:
        raise UserError(
            f"--codec diffusers needs a library that is not there ({error}): pip install 'protocore[diffusers]'"
        ) from error
