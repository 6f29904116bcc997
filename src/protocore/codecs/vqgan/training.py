"""Training of the small VQGAN: principal components and k-means first, then descent through the codes.

The reconstruction loss is the mean over pictures of log(mse): PSNR itself, up to a factor.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.codecs.padding import reflect_pad
from protocore.codecs.vqgan.codec import VQGANCodec
from protocore.codecs.vqgan.config import VQGANConfig
from protocore.codecs.vqgan.files import check_out, load_model, save
from protocore.codecs.vqgan.measuring import Pictures, count_codes, evaluate, mse_of, picture_of, shape_of
from protocore.codecs.vqgan.network import VQGAN
from protocore.codecs.vqgan.quantiser import search
from protocore.errors import DataError
from protocore.files import write_atomic, write_json

Progress = Callable[[dict[str, float]], None]
_SAVE_MINUTES = 5.0  # between two writes of the weights so far
_FLOOR = 1e-5  # keeps log(mse) of a blank picture finite; 50 dB


@dataclass(frozen=True)
class TrainingOptions:
    """What the shape of the weights does not say; the defaults made the shipped decoders."""

    batch: int = 64
    learning_rate: float = 3e-3
    warmup: float = 0.02  # share of the run in which the learning rate rises
    commitment: float = 0.25
    decay: float = 0.99  # of the codebooks' moving average
    beam: int = 2  # of the code search while training
    polish: float = 0.08  # last share of the run, with the decoder's own, wider search
    adversarial: float = 0.0  # last share of the run with a patch discriminator
    adversarial_weight: float = 0.02
    flip: bool = True
    fit_pictures: int = 8000  # pictures from which the components and the first codebooks are found


class PatchDiscriminator(nn.Module):
    """Says of each 8 x 8 neighbourhood whether it looks real (positive) or decoded (negative)."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 3, 1, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images - 0.5)


def hinge_loss(real: Tensor, decoded: Tensor) -> Tensor:
    """max(0, 1 - D(real)) + max(0, 1 + D(decoded))."""
    return F.relu(1 - real).mean() + F.relu(1 + decoded).mean()


@torch.no_grad()
def kmeans(vectors: Tensor, codes: int, generator: torch.Generator, rounds: int = 10) -> Tensor:
    """Lloyd's centres; a centre that nothing falls to moves to a random vector."""
    start = torch.randint(len(vectors), (codes,), generator=generator)
    if len(vectors) >= codes:
        start = torch.randperm(len(vectors), generator=generator)[:codes]
    centres = vectors[start].clone()
    for _ in range(rounds):
        index = search(vectors, centres[None])[:, 0]
        hits = torch.bincount(index, minlength=codes)
        centres = torch.zeros_like(centres).index_add_(0, index, vectors) / hits.clamp_min(1)[:, None]
        empty = torch.nonzero(hits == 0)[:, 0]
        centres[empty] = vectors[torch.randint(len(vectors), (len(empty),), generator=generator)]
    return centres


@torch.no_grad()
def initialise(model: VQGAN, images: Sequence[Tensor], generator: torch.Generator) -> None:
    """Linear paths = principal components of the patches; each stage = components and k-means of what is left."""
    config = model.config
    cut = [F.pixel_unshuffle(part - 0.5, config.factor) for part in images]
    patches = torch.cat([part.permute(0, 2, 3, 1).reshape(-1, config.patch) for part in cut])
    mean = patches.mean(0)
    centred = patches - mean
    rank = min(config.code_dim, config.patch)
    basis = torch.zeros(config.code_dim, config.patch)
    basis[:rank] = _components(centred, rank).T
    model.encoder.linear.weight.copy_(basis[:, :, None, None])
    nn.init.zeros_(_bias(model.encoder.out))
    nn.init.zeros_(_bias(model.decoder.out))
    _bias(model.encoder.linear).copy_(-basis @ mean)
    model.decoder.linear.weight.copy_(basis.T[:, :, None, None])
    _bias(model.decoder.linear).copy_(mean)
    residual = (centred @ basis.T)[torch.randperm(len(centred), generator=generator)[: 50 * config.codes]]
    for stage in range(config.stages):
        plane = _components(residual, config.code_rank)
        codes = kmeans(residual @ plane, config.codes, generator)
        model.quantiser.bases[stage], model.quantiser.codes[stage] = plane, codes
        residual = residual - codes[search(residual @ plane, codes[None])[:, 0]] @ plane.T
    model.quantiser.seed_averages()


def _components(vectors: Tensor, rank: int) -> Tensor:
    """The orthonormal directions (D, rank) that keep most of the vectors (N, D)."""
    directions = torch.linalg.eigh((vectors.T @ vectors / len(vectors)).double()).eigenvectors
    return directions.flip(1)[:, :rank].float()


def _bias(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _checked(name: str, pictures: Pictures, channels: int) -> Pictures:
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or not len(pictures) or pictures.shape[1] != channels:
        raise DataError(
            f"{name}: {pictures.dtype} of shape {pictures.shape}; a decoder of {channels} channels needs "
            f"uint8 pictures (N, {channels}, H, W)"
        )
    return np.ascontiguousarray(pictures)


class _Batches:
    """Random batches from arrays of different picture sizes, each array as often as it has pictures."""

    def __init__(self, arrays: Sequence[Pictures], factor: int, options: TrainingOptions, seed: int) -> None:
        self.arrays = [torch.from_numpy(a) for a in arrays]
        self.factor, self.options = factor, options
        self.generator = torch.Generator().manual_seed(seed)
        self.shares = torch.tensor([float(len(a)) for a in arrays])

    def _floats(self, chosen: Tensor) -> Tensor:
        return reflect_pad(chosen, self.factor).float() / 255

    def first(self, count: int) -> list[Tensor]:
        """A sample of every array, for the components."""
        return [self._floats(a[torch.randperm(len(a), generator=self.generator)[:count]]) for a in self.arrays]

    def next(self) -> Tensor:
        array = self.arrays[int(torch.multinomial(self.shares, 1, generator=self.generator))]
        index = torch.randint(len(array), (self.options.batch,), generator=self.generator)
        images = self._floats(array[index])
        if self.options.flip:
            turned = torch.rand(len(images), generator=self.generator) < 0.5
            images = torch.where(turned[:, None, None, None], images.flip(3), images)
        return images


def _operating_points(config: VQGANConfig, points: Sequence[int] | None) -> tuple[int, ...]:
    chosen = tuple(sorted(points or {max(1, config.stages // 2), config.stages}))
    if chosen[0] < 1 or chosen[-1] != config.stages:
        raise DataError(f"stage points {chosen} must lie in 1..{config.stages} and include {config.stages}")
    return chosen


class _Trainer:
    """The model with its optimisers; one call of `step` is one batch."""

    def __init__(self, model: VQGAN, options: TrainingOptions, points: tuple[int, ...], batches: _Batches) -> None:
        self.model, self.options, self.points, self.batches = model, options, points, batches
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=1e-4
        )
        self.critic = PatchDiscriminator(model.config.channels)
        self.critic_optimiser = torch.optim.Adam(
            self.critic.parameters(), lr=options.learning_rate / 4, betas=(0.5, 0.9)
        )
        self.steps = 0

    def rate(self, done: float) -> float:
        """Linear rise, then a cosine to zero."""
        rise = min(1.0, (done + 1e-3) / self.options.warmup) if self.options.warmup else 1.0
        return self.options.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def step(self, done: float) -> dict[str, float]:
        options, model, quantiser = self.options, self.model, self.model.quantiser
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate(done)
        quantiser.beam = options.beam if done < 1 - options.polish else model.config.beam
        images = self.batches.next()
        z = model.encoder(images)
        # each operating point gets its share of the batch, so that one decoder learns all of them
        parts, quantised, found = z.tensor_split(len(self.points)), [], []
        for part, stages in zip(parts, self.points, strict=True):
            straight, indices = quantiser(part, stages)
            quantised.append(straight)
            found.append(indices)
        codes = torch.cat(quantised)
        decoded = model.decoder(codes)
        errors = mse_of(images, decoded)
        scale = errors.detach() + _FLOOR
        pull = (z - codes.detach()).square().flatten(1).sum(1) / images[0].numel()
        loss = 0.5 * torch.log(errors + _FLOOR).mean() + options.commitment * (pull / scale).mean()
        judged = options.adversarial > 0 and done >= 1 - options.adversarial
        if judged:
            self._train_critic(images, decoded.detach())
            loss = loss - options.adversarial_weight * self.critic(decoded).mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.optimiser.step()
        self._update_codes(parts, found)
        self.steps += 1
        return {"loss": float(loss.detach()), "psnr": float(-10 * torch.log10(scale).mean())}

    def _update_codes(self, parts: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        quantiser, done = self.model.quantiser, 0
        # stages k+1.. are updated by the pictures that use them, the first ones by all
        for stages in dict.fromkeys(self.points):
            users = [i for i, indices in enumerate(found) if indices.shape[1] >= stages]
            z = torch.cat([parts[i].detach() for i in users])
            indices = torch.cat([found[i][:, :stages] for i in users])
            quantiser.update(z, indices, self.options.decay, skip=done)
            if self.steps % 50 == 20:
                quantiser.revive(z, indices, self.batches.generator, skip=done)
            done = stages

    def _train_critic(self, images: Tensor, decoded: Tensor) -> None:
        loss = hinge_loss(self.critic(images), self.critic(decoded))
        self.critic_optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimiser.step()


def train_decoder(
    images: Pictures | Sequence[Pictures],
    config: VQGANConfig,
    *,
    held_out: Pictures,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    points: Sequence[int] | None = None,
    options: TrainingOptions | None = None,
    progress: Progress | None = None,
    out: Path | None = None,
    resume: Path | None = None,
) -> dict[str, Any]:
    """Train on uint8 pictures (one array, or several of different sizes) for `minutes` or `steps`.

    `points` are the numbers of stages the decoder must serve (default: half of them and all), each with its
    share of the pictures: (4, 4, 8) gives 4 stages two thirds. `resume` starts at the weights of a file instead
    of principal components. With `out`, a .safetensors file, writes the weights there (now and then while
    training), the report beside them as .json and the reconstructions as .png. With `steps` the result depends
    on the arguments alone.
    """
    options = options or TrainingOptions()
    amounts = [amount for amount in (minutes, steps) if amount is not None]
    if len(amounts) != 1 or not 0 < amounts[0] < math.inf:  # false for nan too, with which no training ends
        raise DataError(f"minutes is {minutes} and steps is {steps}: give one of them, a number above zero")
    if out is not None:
        check_out(out)
    arrays = [images] if isinstance(images, np.ndarray) else list(images)
    arrays = [_checked("training pictures", a, config.channels) for a in arrays]
    held_out = _checked("held-out pictures", held_out, config.channels)
    points = _operating_points(config, points)
    if options.batch < len(points):
        raise DataError(f"a batch of {options.batch} cannot be shared by {len(points)} stage points")
    started, worked = time.monotonic(), time.process_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = VQGAN(config) if resume is None else _resumed(resume, config)
        batches = _Batches(arrays, config.factor, options, seed)
        if resume is None:
            initialise(model, batches.first(options.fit_pictures), batches.generator)
        trainer = _Trainer(model, options, points, batches)
    model.train()
    curve: list[float] = []
    saved = 0.0
    while True:
        elapsed = (time.monotonic() - started) / 60
        done = trainer.steps / steps if steps is not None else elapsed / (minutes or 1.0)
        if done >= 1 and curve:  # at least one step, so that there is a loss to report
            break
        row = trainer.step(done)
        curve.append(row["loss"])
        if out is not None and elapsed - saved > _SAVE_MINUTES:
            save(model, out)
            saved = elapsed
        if progress is not None:
            progress({"step": trainer.steps, "done": done, "minutes": elapsed, **row})
    model.quantiser.beam = config.beam
    # what is measured is what is stored: float16
    model.load_state_dict({k: v.half().float() for k, v in model.state_dict().items()})
    count_codes(model, arrays)
    report: dict[str, Any] = {
        "config": asdict(config),
        "options": asdict(options),
        "points": list(points),
        "seed": seed,
        "resumed_from": resume.name if resume is not None else None,
        "steps": trainer.steps,
        "minutes": round((time.monotonic() - started) / 60, 2),
        "processor_minutes": round((time.process_time() - worked) / 60, 2),
        "training_pictures": [list(a.shape) for a in arrays],
        "training_sha256": [hashlib.sha256(a.tobytes()).hexdigest() for a in arrays],
        "loss_first": float(np.mean(curve[:20])),
        "loss_last": float(np.mean(curve[-20:])),
        "held_out": [evaluate(model, held_out, stages) for stages in dict.fromkeys(points)],
    }
    decoder = VQGANCodec(model, shape_of(held_out))
    report |= {
        "digest": decoder.digest,
        "shared_bytes": decoder.shared_bytes,
        "encoder_bytes": decoder.encoder_bytes,
    }
    if out is not None:
        save(model, out)
        write_json(out.with_suffix(".json"), report)
        shown = BytesIO()
        picture_of(model, held_out, points[-1]).save(shown, format="png")
        write_atomic(out.with_suffix(".png"), shown.getvalue())
    return report


def _resumed(path: Path, config: VQGANConfig) -> VQGAN:
    model = load_model(path)
    if model.config != config:
        raise DataError(f"{path}: holds {model.config}, but {config} was asked for: give the same numbers")
    return model
