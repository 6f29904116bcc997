"""Training of the small VQGAN: principal components and k-means first, then descent through the codes."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocore.codecs.vqgan.codec import VQGANCodec
from protocore.codecs.vqgan.config import VQGANConfig
from protocore.codecs.vqgan.figure import reconstructions
from protocore.codecs.vqgan.files import check_out, load_model, restored, save, stored
from protocore.codecs.vqgan.measuring import Pictures, count_codes, evaluate, shape_of
from protocore.codecs.vqgan.network import VQGAN
from protocore.codecs.vqgan.start import initialise
from protocore.codecs.vqgan.trainer import Batches, Trainer, TrainingOptions
from protocore.errors import DataError
from protocore.files import write_atomic, write_json

Progress = Callable[[dict[str, float]], None]
_SAVE_MINUTES = 5.0  # between two writes of the weights so far


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

    `points` are the numbers of stages that the decoder must serve (default: half of them and all), each with its
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
        batches = Batches(arrays, config.factor, options, seed)
        if resume is None:
            initialise(model, batches.first(options.fit_pictures), batches.generator)
        trainer = Trainer(model, options, points, batches)
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
    model.load_state_dict(restored(stored(model.state_dict())))  # what is measured is what is stored
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
    codec = VQGANCodec(model, shape_of(held_out))
    report |= {
        "digest": codec.digest,
        "shared_bytes": codec.shared_bytes,
        "encoder_bytes": codec.encoder_bytes,
    }
    if out is not None:
        save(model, out)
        write_json(out.with_suffix(".json"), report)
        drawn = BytesIO()
        reconstructions(model, held_out, report["held_out"]).save(drawn, format="png")
        write_atomic(out.with_suffix(".png"), drawn.getvalue())
    return report


def _checked(name: str, pictures: Pictures, channels: int) -> Pictures:
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or not len(pictures) or pictures.shape[1] != channels:
        raise DataError(
            f"{name}: {pictures.dtype} of shape {pictures.shape}; a VQGAN of {channels} channels needs "
            f"uint8 pictures (N, {channels}, H, W)"
        )
    return np.ascontiguousarray(pictures)


def _operating_points(config: VQGANConfig, points: Sequence[int] | None) -> tuple[int, ...]:
    chosen = tuple(sorted(points or {max(1, config.stages // 2), config.stages}))
    if chosen[0] < 1 or chosen[-1] != config.stages:
        raise DataError(f"stage points {chosen} must lie in 1..{config.stages} and include {config.stages}")
    return chosen


def _resumed(path: Path, config: VQGANConfig) -> VQGAN:
    model = load_model(path)
    if model.config != config:
        raise DataError(f"{path}: holds {model.config}, but {config} was asked for: give the same numbers")
    return model
