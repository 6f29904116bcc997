"""One step of training after the other: random batches, the loss, the codebooks, a patch discriminator.

The reconstruction loss is the mean over pictures of log(mse): PSNR itself, up to a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.codecs.padding import reflect_pad
from protocore.codecs.vqgan.measuring import Pictures, mse_of
from protocore.codecs.vqgan.network import VQGAN

_FLOOR = 1e-5  # keeps log(mse) of a blank picture finite; 50 dB


@dataclass(frozen=True)
class TrainingOptions:
    """What the shape of the weights does not say; the defaults made the shipped weights."""

    batch: int = 64
    learning_rate: float = 3e-3
    warmup: float = 0.02  # share of the run in which the learning rate rises
    commitment: float = 0.25
    decay: float = 0.99  # of the codebooks' moving average
    beam: int = 2  # of the code search while training
    polish: float = 0.08  # last share of the run, with the model's own, wider search
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


class Batches:
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


class Trainer:
    """The model with its optimisers; one call of `step` is one batch."""

    def __init__(self, model: VQGAN, options: TrainingOptions, points: tuple[int, ...], batches: Batches) -> None:
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
