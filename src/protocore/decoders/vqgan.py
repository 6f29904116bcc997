"""Our own small VQGAN: a convolutional encoder, residual vector quantisation, a convolutional decoder.

Both halves are a linear patch transform (its inverse in the decoder) plus a convolutional correction that
starts at zero, so that training begins at principal components and k-means. The quantiser adds up one code of
each stage's codebook (residual quantisation); the first k stages are a coarser code of the same picture, so
that the number of stages is a choice at run time. A stage's codes lie in a plane of `code_rank` dimensions of
its own: most of what a stage can still correct lies there, and the codebooks stay small.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from protocore.decoders.base import Decoder, ImageShape
from protocore.decoders.bits import bits_per_code, pack, packed_bytes, unpack
from protocore.decoders.entropy import EntropyCoder
from protocore.errors import DataError

FORMAT = "protocore-vqgan"
VERSION = 1
FREQUENCIES = "frequencies"  # a tensor of the file that a model may do without
MAX_FILE_BYTES = 256 * 2**20
_DRAFT_BEAM = 2
_CHUNK_SCORES = 2**19  # entries of a score matrix held at once: they stay in the processor's cache
_WEIGHTS = Path(__file__).parent / "weights"
_SHIPPED = {1: "vqgan-grey.safetensors", 3: "vqgan-colour.safetensors"}


@dataclass(frozen=True)
class VQGANConfig:
    """Everything that fixes the shape of the weights, and how many candidates the code search keeps."""

    channels: int = 3
    factor: int = 8  # pixels of a side that share one position of the latent
    codes: int = 512
    stages: int = 8
    code_dim: int = 48
    code_rank: int = 20  # dimensions of a stage's codes
    width: int = 48  # decoder channels at half the factor; the latent's resolution has a third more
    encoder_width: int = 48
    blocks: int = 2  # residual blocks at each of the two resolutions
    beam: int = 16  # candidates kept from stage to stage; 1 is the greedy search

    def __post_init__(self) -> None:
        limits = {
            "channels": (1, 3),
            "factor": (2, 64),
            "codes": (2, 65536),
            "stages": (1, 64),
            "code_dim": (1, 1024),
            "code_rank": (1, 1024),
            "width": (8, 1024),
            "encoder_width": (8, 1024),
            "blocks": (0, 32),
            "beam": (1, 256),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise DataError(f"decoder {name.replace('_', '-')} is {value!r}: give {low}..{high}")
        if self.channels == 2:
            raise DataError("decoder channels is 2: give 1 (grey) or 3 (colour)")
        if self.code_rank > self.code_dim:
            raise DataError(f"decoder code-rank is {self.code_rank}: more than code-dim, {self.code_dim}")
        if self.factor & (self.factor - 1):
            raise DataError(f"decoder factor is {self.factor}: give a power of two, for example 4 or 8")

    @property
    def patch(self) -> int:
        """Values of one patch of factor x factor pixels."""
        return self.channels * self.factor**2


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


def search(vectors: Tensor, codebooks: Tensor, beam: int = 1) -> Tensor:
    """Indices (P, stages) of the codes whose sum is near each vector (P, D); `beam` 1 is greedy.

    Stage after stage the `beam` best partial sums are kept, by |r - c|^2 = |r|^2 - 2 r.c + |c|^2: all of it in
    one product, since reading the scores again costs more than making them.
    """
    rows = max(1, _CHUNK_SCORES // (beam * codebooks.shape[1]))
    return torch.cat([_search(part, codebooks, beam) for part in vectors.split(rows)])


def _search(vectors: Tensor, codebooks: Tensor, beam: int) -> Tensor:
    count, codes = len(vectors), codebooks.shape[1]
    residual = vectors[:, None]  # (P, candidates, D)
    chosen = torch.empty(count, 1, 0, dtype=torch.long, device=vectors.device)
    for book in codebooks:
        left = torch.cat([residual, _square(residual), torch.ones_like(residual[..., :1])], 2)
        score = (left @ torch.cat([-2 * book, torch.ones_like(book[:, :1]), _square(book)], 1).T).flatten(1)
        best = score.argmin(1, keepdim=True) if beam == 1 else _smallest(score, beam)
        parent, index = (best // codes)[..., None], best % codes
        residual = residual.gather(1, parent.expand(-1, -1, residual.shape[2])) - book[index]
        chosen = torch.cat([chosen.gather(1, parent.expand(-1, -1, chosen.shape[2])), index[..., None]], 2)
    first = _square(residual)[..., 0].argmin(1)
    return chosen[torch.arange(count, device=chosen.device), first]


def _square(x: Tensor) -> Tensor:
    return (x * x).sum(-1, keepdim=True)


def _smallest(score: Tensor, count: int, members: int = 16) -> Tensor:
    """Columns of the `count` smallest entries of each row.

    They lie in the `count` groups with the smallest minima: two small sorts instead of one over the whole row.
    """
    groups, rest = divmod(score.shape[1], members)
    if rest or groups <= count:
        return score.topk(min(count, score.shape[1]), dim=1, largest=False).indices
    group = score.view(-1, members, groups).amin(1).topk(count, dim=1, largest=False).indices
    columns = (group[:, None] + groups * torch.arange(members, device=score.device)[:, None]).flatten(1)
    return columns.gather(1, score.gather(1, columns).topk(count, dim=1, largest=False).indices)


class Quantiser(nn.Module):
    """One codebook a stage, kept as the moving average of what falls to each code.

    `codes` (stages, codes, code_rank) are coordinates in the plane that the orthonormal columns of `bases`
    (stages, code_dim, code_rank) span.
    """

    codes: Tensor
    bases: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        self.beam = config.beam
        stages, dim, rank = config.stages, config.code_dim, config.code_rank
        codes = torch.randn(stages, config.codes, rank) / math.sqrt(rank)
        self.register_buffer("codes", codes)
        self.register_buffer("bases", torch.eye(dim, rank).repeat(stages, 1, 1))
        self.register_buffer("counts", torch.ones(codes.shape[:2]), persistent=False)
        self.register_buffer("sums", codes.clone(), persistent=False)

    def codebooks(self, stages: int) -> Tensor:
        """The first codebooks as latents (stages, codes, code_dim)."""
        return self.codes[:stages] @ self.bases[:stages].mT

    def indices(self, z: Tensor, stages: int, beam: int | None = None) -> Tensor:
        """Codes (N, stages, h, w) of the latents (N, D, h, w)."""
        count, _, height, width = z.shape
        with torch.no_grad():
            found = search(_vectors(z), self.codebooks(stages), beam or self.beam)
        return found.view(count, height, width, stages).permute(0, 3, 1, 2)

    def lookup(self, indices: Tensor) -> Tensor:
        """Latents (N, D, h, w): the sum of the codes over the stages."""
        stage = torch.arange(indices.shape[1], device=indices.device)[:, None, None]
        return self.codebooks(indices.shape[1])[stage, indices].sum(1).permute(0, 3, 1, 2).contiguous()

    def forward(self, z: Tensor, stages: int, beam: int | None = None) -> tuple[Tensor, Tensor]:
        """Quantised latents, gradients straight through to z, and their indices."""
        indices = self.indices(z, stages, beam)
        return z + (self.lookup(indices) - z).detach(), indices

    @torch.no_grad()
    def seed_averages(self) -> None:
        """Start the averages at the present codes, as if each had been met once."""
        self.counts.fill_(1.0)
        self.sums.copy_(self.codes)

    def _residuals(self, z: Tensor, indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Stage after stage: what is left to code, in the stage's coordinates, and the codes it got."""
        residual = _vectors(z)
        rows = indices.transpose(0, 1).flatten(1)
        for basis, codes, index in zip(self.bases, self.codes, rows, strict=False):
            yield residual @ basis, index
            residual = residual - codes[index] @ basis.T

    @torch.no_grad()
    def update(self, z: Tensor, indices: Tensor, decay: float, skip: int = 0) -> None:
        """count <- decay count + (1 - decay) n, sum likewise, code = sum / count, from stage `skip` on."""
        for stage, (left, index) in enumerate(list(self._residuals(z, indices))):
            if stage < skip:
                continue
            counts, sums = self.counts[stage], self.sums[stage]
            hits = torch.bincount(index, minlength=len(counts)).to(left)
            counts.mul_(decay).add_(hits, alpha=1 - decay)
            sums.mul_(decay).add_(torch.zeros_like(sums).index_add_(0, index, left), alpha=1 - decay)
            live = counts > 1e-6
            self.codes[stage, live] = sums[live] / counts[live, None]

    @torch.no_grad()
    def revive(self, z: Tensor, indices: Tensor, generator: torch.Generator, skip: int = 0) -> int:
        """Move codes met less than a twentieth of an even use to residuals met now; returns how many."""
        moved = 0
        for stage, (left, _) in enumerate(list(self._residuals(z, indices))):
            even = self.counts[stage].mean()
            dead = torch.nonzero(self.counts[stage] < even / 20)[:, 0][: len(left)]
            if stage >= skip and len(dead):
                fresh = left[torch.randperm(len(left), generator=generator)[: len(dead)]]
                self.codes[stage, dead], self.counts[stage, dead] = fresh, even
                self.sums[stage, dead] = fresh * even
                moved += len(dead)
        return moved


def _vectors(z: Tensor) -> Tensor:
    return z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])


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

    def forward(self, images: Tensor, stages: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction (not clamped), latents, indices."""
        z = self.encoder(images)
        quantised, indices = self.quantiser(z, stages or self.config.stages)
        return self.decoder(quantised), z, indices


def reflect_pad(images: Tensor, factor: int) -> Tensor:
    """Images mirrored at the right and lower edge until both sides are multiples of the factor."""
    height, width = images.shape[-2:]
    if height % factor == 0 and width % factor == 0:
        return images
    rows, columns = (_mirrored(side, factor, images.device) for side in (height, width))
    return images[..., rows[:, None], columns]


def _mirrored(side: int, factor: int, device: torch.device) -> Tensor:
    """0 1 2 .. side-1 side-2 .. 0 1 ..: defined also where the padding is wider than the picture."""
    index = torch.arange(-(-side // factor) * factor, device=device)
    period = max(1, 2 * (side - 1))
    return (side - 1 - (index % period - (side - 1)).abs()) if side > 1 else index * 0


class VQGANDecoder(Decoder):
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
                f"choose a decoder trained on pictures like these"
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

    def with_shape(self, image_shape: ImageShape, stages: int | None = None) -> VQGANDecoder:
        """The same weights for other pictures or another number of stages."""
        chosen = self.stages if stages is None else stages
        return VQGANDecoder(self.model, image_shape, chosen, self.sweeps, self.coder is not None)

    def encode(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            met = tuple(images.shape[1:])
            raise DataError(f"pictures of shape {met} met a decoder for {self.image_shape}")
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
    def bits_per_index(self) -> int:
        return bits_per_code(self.config.codes)

    @property
    def digest(self) -> str:
        tail = f"{self._digest} {self.image_shape} {self.stages}".encode()
        if self.coder and self.model.frequencies is not None:
            tail += b" entropy " + self.model.frequencies[: self.stages].half().numpy().tobytes()
        return hashlib.sha256(tail).hexdigest()

    @property
    def shared_bytes(self) -> int:
        """Decoder and the codebooks in use, in float16: what a device needs to show what it stored."""
        quantiser = self.model.quantiser
        used = quantiser.codes[: self.stages].numel() + quantiser.bases[: self.stages].numel()
        if self.coder:
            used += self.stages * self.config.codes
        return 2 * (used + sum(p.numel() for p in self.model.decoder.parameters()))

    @property
    def encoder_bytes(self) -> int:
        """The encoder in float16: needed only where new pictures are coded."""
        return 2 * sum(p.numel() for p in self.model.encoder.parameters())


def weights_digest(model: VQGAN) -> str:
    """SHA-256 of a model as `save` stores it, whatever the pictures and the stages in use."""
    return _weights_digest(model.config, model.state_dict())


def _weights_digest(config: VQGANConfig, weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over the configuration and the float16 weights, in the order of their names."""
    digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode())
    for name in sorted(weights):
        tensor = weights[name].detach().to("cpu", torch.float16).contiguous()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def save(model: VQGAN, path: Path) -> None:
    """Write the weights in float16, the configuration beside them; the file appears whole or not at all."""
    tensors = model.state_dict() | ({} if model.frequencies is None else {FREQUENCIES: model.frequencies})
    weights = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in tensors.items()}
    lost = sorted(k for k, v in weights.items() if not bool(torch.isfinite(v).all()))
    if lost:
        raise DataError(f"{path}: float16 cannot hold {', '.join(lost)}: training has diverged")
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": json.dumps(asdict(model.config), sort_keys=True),
        "sha256": _weights_digest(model.config, weights),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_bytes(save_tensors(weights, header))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_model(path: Path) -> VQGAN:
    """Read what `save` wrote; anything else raises `DataError` naming the file."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DataError(f"{path}: {size} bytes is more than a decoder file may have ({MAX_FILE_BYTES})")
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    header = _header(path, raw)
    config = _config(path, header)
    try:
        weights = load_tensors(raw)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}): copy or train it again") from error
    with torch.device("meta"):
        model = VQGAN(config)
    expected = model.state_dict()
    if FREQUENCIES in weights:
        expected[FREQUENCIES] = torch.empty(config.stages, config.codes, device="meta")
    if weights.keys() != expected.keys():
        lacks, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
        raise DataError(f"{path}: lacks tensors {lacks}, extra tensors {extra}: not the file its header says")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape or tensor.dtype != torch.float16:
            raise DataError(
                f"{path}: {name} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"but its header says float16 {tuple(expected[name].shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{path}: {name} holds values that are not finite: damaged")
    if _weights_digest(config, weights) != header.get("sha256"):
        raise DataError(f"{path}: the weights do not match their hash: damaged, copy or train it again")
    frequencies = weights.pop(FREQUENCIES, None)
    if frequencies is not None and not bool((frequencies > 0).all()):
        raise DataError(f"{path}: {FREQUENCIES} must be above zero: damaged")
    with torch.random.fork_rng(devices=[]):  # a file that is read must not move the caller's random numbers
        model = VQGAN(config)
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    model.quantiser.seed_averages()
    model.frequencies = None if frequencies is None else frequencies.float()
    return model


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
        raise DataError(f"{path}: version {header.get('version')!r}, but only version {VERSION} can be read")
    return header


def _config(path: Path, header: Mapping[str, str]) -> VQGANConfig:
    try:
        values = json.loads(header["config"])
        if set(values) != {field.name for field in fields(VQGANConfig)}:
            raise DataError(f"{path}: unknown or missing configuration fields: {sorted(values)}")
        return VQGANConfig(**values)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: its configuration cannot be read ({error})") from error


def load(
    path: Path | str, image_shape: ImageShape | None = None, stages: int | None = None, sweeps: int = 0,
    entropy: bool = False,
) -> VQGANDecoder:
    """A decoder from a file of `save`, for 32 x 32 pictures unless told otherwise."""
    model = load_model(Path(path))
    return VQGANDecoder(model, image_shape or (model.config.channels, 32, 32), stages, sweeps, entropy)


def shipped(channels: int) -> Path:
    """The weights inside the package: 1 for grey pictures, 3 for colour."""
    if channels not in _SHIPPED:
        raise DataError(f"no decoder ships for {channels} channels: train one with `protocore decoder train`")
    return _WEIGHTS / _SHIPPED[channels]
