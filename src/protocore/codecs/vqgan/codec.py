"""The VQGAN as a codec."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.codecs.base import Codec
from protocore.codecs.bits import pack, packed_bytes, unpack
from protocore.codecs.entropy import EntropyCoder
from protocore.codecs.padding import reflect_pad
from protocore.codecs.vqgan.files import load_model, stored_bytes, weights_digest
from protocore.codecs.vqgan.network import VQGAN
from protocore.errors import DataError
from protocore.pictures import ImageShape

_DRAFT_BEAM = 2


class VQGANCodec(Codec):
    """The interface over a frozen VQGAN; `stages` chooses how many of its codebooks are used."""

    name = "vqgan"

    def __init__(self, model: VQGAN, image_shape: ImageShape, stages: int | None = None, sweeps: int = 0,
                 entropy: bool = False) -> None:
        """`sweeps` > 0 makes `encode` look for better codes through the decoder: see `refine`.

        `entropy` stores frequent codes in fewer bits, so that exemplars differ in size.
        """
        super().__init__(image_shape)
        config = model.config
        if image_shape[0] != config.channels or min(image_shape) < 1:
            raise DataError(
                f"a VQGAN of {config.channels} channels cannot code pictures of shape {image_shape}: "
                f"choose weights trained on pictures like these"
            )
        self.stages = config.stages if stages is None else stages
        if not 1 <= self.stages <= config.stages:
            raise DataError(f"stages is {stages}, but this VQGAN has codebooks for 1..{config.stages}")
        self.sweeps = sweeps
        self.coder = None
        if entropy:
            if model.frequencies is None:
                raise DataError("these weights do not say how often each code occurs: leave ',entropy' out, or train "
                                "them again")
            self.coder = EntropyCoder(model.frequencies[: self.stages].numpy())
        self.config = config
        self.model = model.eval().requires_grad_(False)
        self._digest = weights_digest(model)

    def encode(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            met = tuple(images.shape[1:])
            raise DataError(f"pictures of shape {met} met a codec for {self.image_shape}")
        z = self.model.encoder(reflect_pad(images, self.config.factor))
        return self.refine(images, z, self.sweeps) if self.sweeps else z

    @torch.no_grad()
    def refine(self, images: Tensor, z: Tensor, sweeps: int = 1) -> Tensor:
        """Latents whose codes decode closer to the images, at the same number of bytes.

        The encoder cannot know how its neighbours will be rounded. So a quarter of the positions at a time, no
        two of them adjacent, moves to where the decoder (taken as linear) wants it, given the codes of the
        others; the new code is kept where the picture around it came closer.
        """
        decoder, quantiser = self.model.decoder, self.model.quantiser
        images = reflect_pad(images, self.config.factor)
        start, z = z, z.clone()
        codes = quantiser.lookup(self.indices(z))
        error = first = self._errors(images, codes)
        for corner in [(slice(a, None, 2), slice(b, None, 2)) for a in (0, 1) for b in (0, 1)] * sweeps:
            part = (slice(None), slice(None), *corner)
            if not codes[part].numel():
                continue
            with torch.enable_grad():
                leaf = codes.clone().requires_grad_()
                missing = images - decoder(leaf)
                (slope,) = torch.autograd.grad(missing.square().sum(), leaf)
            move = torch.zeros_like(codes)
            move[part] = -slope[part]
            change = decoder(codes + move) - (images - missing)
            length = (missing * change).flatten(1).sum(1) / change.square().flatten(1).sum(1).clamp_min(1e-12)
            wanted = (codes + length.view(-1, 1, 1, 1) * move)[part]
            trial = codes.clone()
            trial[part] = quantiser.lookup(self.indices(wanted))
            met = self._errors(images, trial)
            # the weights of the positions of one corner add up to 1 at every place of the picture
            weights = torch.tensor([0.5, 1.0, 0.5], device=z.device)
            gain = F.conv2d(error - met, weights.outer(weights)[None, None], padding=1)
            better = gain[part] > 0
            z[part] = torch.where(better, wanted, z[part])
            codes[part] = torch.where(better, trial[part], codes[part])
            error = self._errors(images, codes)
        closer = error.flatten(1).sum(1) < first.flatten(1).sum(1)
        return torch.where(closer.view(-1, 1, 1, 1), z, start)

    def _errors(self, images: Tensor, codes: Tensor) -> Tensor:
        """Squared error at each position (N, 1, h, w)."""
        error = (images - self.model.decoder(codes).clamp(0, 1)).square().mean(1, keepdim=True)
        return F.avg_pool2d(error, self.config.factor)

    def quantise(self, z: Tensor) -> Tensor:
        return self.model.quantiser(z, self.stages)[0]

    def draft(self, z: Tensor) -> Tensor:
        """Two candidates instead of 16: a sixth of the time, which is most of a step of condensation."""
        return self.model.quantiser(z, self.stages, min(_DRAFT_BEAM, self.config.beam))[0]

    def random(self, count: int, scale: float) -> Tensor:
        """Every code equally likely at every place; `scale` has no meaning here."""
        _, height, width = self.latent_shape
        found = torch.randint(self.config.codes, (count, self.stages, height, width))
        return self.model.quantiser.lookup(found.to(self.model.quantiser.codes.device)).cpu()

    def decode(self, z: Tensor) -> Tensor:
        _, height, width = self.image_shape
        return self.model.decoder(z)[..., :height, :width].clamp(0, 1)

    def indices(self, z: Tensor) -> Tensor:
        """Codes (N, stages, h, w) that `to_bytes` stores."""
        return self.model.quantiser.indices(z, self.stages)

    def to_bytes(self, z: Tensor) -> list[bytes]:
        indices = self.indices(z).cpu()
        if self.coder:
            return self.coder.pack(indices.flatten(2).numpy())
        return pack(indices.flatten(1).numpy(), self.config.codes)

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        _, height, width = self.latent_shape
        if self.coder:
            indices = self.coder.unpack(stored, height * width)
        else:
            indices = unpack(stored, self.stages * height * width, self.config.codes)
        found = torch.from_numpy(indices).view(-1, self.stages, height, width)
        return self.model.quantiser.lookup(found.to(self.model.quantiser.codes.device))

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        _, height, width = self.image_shape
        return self.config.code_dim, -(-height // self.config.factor), -(-width // self.config.factor)

    @property
    def exemplar_bytes(self) -> int | None:
        _, height, width = self.latent_shape
        return None if self.coder else packed_bytes(self.stages * height * width, self.config.codes)

    @property
    def largest(self) -> int | None:
        _, height, width = self.latent_shape
        return self.coder.largest(height * width) if self.coder else self.exemplar_bytes

    @property
    def digest(self) -> str:
        tail = f"{self._digest} {self.image_shape} {self.stages}".encode()
        if self.coder and self.model.frequencies is not None:
            tail += b" entropy " + self.model.frequencies[: self.stages].half().numpy().tobytes()
        return hashlib.sha256(tail).hexdigest()

    @property
    def shared_bytes(self) -> int:
        """Decoder and the codebooks in use, as they are stored: what a device needs to show what it stored."""
        quantiser = self.model.quantiser
        used = [quantiser.codes[: self.stages], quantiser.bases[: self.stages], *self.model.decoder.parameters()]
        return stored_bytes(used) + (2 * self.stages * self.config.codes if self.coder else 0)

    @property
    def encoder_bytes(self) -> int:
        """The encoder as it is stored: needed only where new pictures are coded."""
        return stored_bytes(self.model.encoder.parameters())


def load(
    path: Path | str, image_shape: ImageShape | None = None, stages: int | None = None, sweeps: int = 0,
    entropy: bool = False,
) -> VQGANCodec:
    """A codec from a file of `save`, for 32 x 32 pictures unless told otherwise."""
    model = load_model(Path(path))
    return VQGANCodec(model, image_shape or (model.config.channels, 32, 32), stages, sweeps, entropy)
