"""The small VQGAN: bits, the quantiser against slow loops, files that lie, training, shipped weights."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.datasets import load_digits, load_sample_images

from protocore.codecs import vqgan
from protocore.codecs.bits import bits_per_code, pack, packed_bytes, unpack
from protocore.codecs.padding import reflect_pad
from protocore.codecs.vqgan import (
    VQGAN,
    Quantiser,
    VQGANCodec,
    VQGANConfig,
    files,
    load,
    quantiser,
    save,
    search,
    shipped,
    start,
)
from protocore.codecs.vqgan.figure import reconstructions
from protocore.codecs.vqgan.files import restored, stored
from protocore.codecs.vqgan.measuring import evaluate
from protocore.codecs.vqgan.training import TrainingOptions, train_decoder
from protocore.errors import DataError, UserError

TINY = VQGANConfig(
    channels=3,
    factor=4,
    codes=16,
    stages=2,
    code_dim=6,
    code_rank=4,
    width=12,
    encoder_width=12,
    blocks=1,
    beam=3,
)


@pytest.fixture
def tiny() -> VQGAN:
    torch.manual_seed(0)
    model = VQGAN(TINY)
    model.quantiser.bases.copy_(torch.linalg.qr(torch.randn(2, 6, 4)).Q)
    for layer in (model.encoder.out, model.decoder.out):  # zero at first: give the convolutions a say
        torch.nn.init.normal_(layer.weight, std=0.05)
    return model


def structured(count: int, seed: int, size: int = 16, channels: int = 3) -> np.ndarray:
    """Pictures of smooth waves with random direction, colour and phase."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    a, b = rng.normal(0, 4, (2, count, 1, 1, 1))
    phase, level = rng.uniform(0, 6, (count, 1, 1, 1)), rng.uniform(0.2, 0.8, (count, channels, 1, 1))
    waves = level + 0.2 * np.sin(a * x + b * y + phase)
    return (waves.clip(0, 1) * 255).round().astype(np.uint8)


# bits


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5000), st.integers(0, 40), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_packing_round_trip_is_exact_at_ceil_log2_bits(codes: int, count: int, rows: int, seed: int) -> None:
    indices = np.random.default_rng(seed).integers(0, codes, (rows, count))
    stored = pack(indices, codes)
    width = next(b for b in range(1, 20) if 2**b >= codes)
    assert bits_per_code(codes) == width
    assert {len(row) for row in stored} <= {-(-count * width // 8)}
    assert np.array_equal(unpack(stored, count, codes), indices)


def test_packing_matches_a_string_of_bits() -> None:
    indices = np.array([[5, 0, 511, 256, 3]])
    text = "".join(f"{i:09b}" for i in indices[0]).ljust(48, "0")
    assert pack(indices, 512) == [int(text, 2).to_bytes(6, "big")]


def test_unpacking_refuses_wrong_length_padding_and_range() -> None:
    (row,) = pack(np.array([[1, 2, 3]]), 500)
    for bad in (row[:-1], row + b"\0", row[:-1] + bytes([row[-1] | 1])):
        with pytest.raises(DataError):
            unpack([bad], 3, 500)
    with pytest.raises(DataError, match="511"):
        unpack(pack(np.array([[511]]), 512), 1, 500)
    for wrong in ([[500]], [[-1]]):
        with pytest.raises(DataError):
            pack(np.array(wrong), 500)


# quantiser


def test_greedy_search_is_the_nearest_code_stage_after_stage() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors, books = torch.randn(30, 5, generator=generator), torch.randn(3, 11, 5, generator=generator)
    for row, found in zip(vectors, search(vectors, books), strict=True):
        for stage in range(3):
            distances = [float((row - code).square().sum()) for code in books[stage]]
            assert int(found[stage]) == int(np.argmin(distances))
            row = row - books[stage, found[stage]]


def test_beam_search_matches_a_slow_beam_and_a_full_beam_is_the_optimum() -> None:
    generator = torch.Generator().manual_seed(2)
    vectors, books = torch.randn(20, 4, generator=generator), torch.randn(3, 6, 4, generator=generator)

    def slow(vector: torch.Tensor, beam: int) -> tuple[int, ...]:
        kept: list[tuple[float, tuple[int, ...], torch.Tensor]] = [(0.0, (), vector)]
        for book in books:
            grown = [
                (float((rest - code).square().sum()), (*path, i), rest - code)
                for _, path, rest in kept
                for i, code in enumerate(book)
            ]
            kept = sorted(grown, key=lambda entry: entry[0])[:beam]
        return kept[0][1]

    for beam in (1, 2, 5, 6**3):
        found = search(vectors, books, beam)
        assert [tuple(row.tolist()) for row in found] == [slow(vector, beam) for vector in vectors]


def test_search_does_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, books = torch.randn(50, 4), torch.randn(2, 8, 4)
    whole = search(vectors, books, 2)
    monkeypatch.setattr(quantiser, "_CHUNK_SCORES", 7 * 16)
    assert torch.equal(search(vectors, books, 2), whole)


def test_every_residual_stage_lowers_the_error() -> None:
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(3000, 6, generator=generator)
    books, rest = [], vectors
    for _ in range(4):
        books.append(start.kmeans(rest, 32, generator))
        rest = rest - books[-1][search(rest, books[-1][None])[:, 0]]
    stack = torch.stack(books)
    errors = [
        float((vectors - stack[torch.arange(k), search(vectors, stack[:k])].sum(1)).square().mean())
        for k in range(1, 5)
    ]
    assert all(after < 0.75 * before for before, after in itertools.pairwise(errors))


def test_gradient_passes_straight_through(tiny: VQGAN) -> None:
    codec = VQGANCodec(tiny, (3, 16, 16))
    z = torch.randn(2, *codec.latent_shape, requires_grad=True)
    weight = torch.randn_like(z)
    (codec.quantise(z) * weight).sum().backward()
    assert z.grad is not None
    assert torch.equal(z.grad, weight)
    assert not torch.equal(codec.quantise(z), z)


def test_a_draft_is_storable_and_lies_between_greedy_and_the_long_search() -> None:
    codec = load(shipped(3), (3, 32, 32), 4)
    z = codec.encode(torch.from_numpy(crops(32)[:16]).float() / 255).requires_grad_(True)
    draft = codec.draft(z)
    found = (codec.quantise(z), draft, codec.model.quantiser(z, 4, beam=1)[0])
    long, quick, greedy = (float((codes - z).detach().square().mean()) for codes in found)
    assert long < quick < greedy
    assert quick < 1.2 * long
    again = codec.from_bytes(codec.to_bytes(draft.detach()))
    assert float((again - draft).abs().amax(1).lt(1e-4).float().mean()) > 0.95
    (gradient,) = torch.autograd.grad(draft.sum(), z)
    assert torch.equal(gradient, torch.ones_like(z))


def test_moving_average_follows_a_slow_reference() -> None:
    torch.manual_seed(4)
    quantiser = Quantiser(TINY)
    quantiser.bases.copy_(torch.linalg.qr(torch.randn(2, 6, 4)).Q)
    bases, codes = quantiser.bases.numpy(), quantiser.codes.numpy().copy()
    counts, sums = quantiser.counts.numpy().copy(), quantiser.sums.numpy().copy()
    for _ in range(3):
        z = torch.randn(4, 6, 3, 2)
        indices = quantiser.indices(z, 2)
        quantiser.update(z, indices, decay=0.9)
        hits, total = np.zeros_like(counts), np.zeros_like(sums)
        for n in range(4):
            for i in range(3):
                for j in range(2):
                    rest = z[n, :, i, j].numpy()
                    for stage in range(2):
                        code = int(indices[n, stage, i, j])
                        hits[stage, code] += 1
                        total[stage, code] += bases[stage].T @ rest
                        rest = rest - bases[stage] @ codes[stage, code]
        counts, sums = 0.9 * counts + 0.1 * hits, 0.9 * sums + 0.1 * total
        codes = sums / counts[..., None]
        np.testing.assert_allclose(quantiser.codes.numpy(), codes, atol=1e-5)


def test_skipped_stages_keep_their_codes() -> None:
    quantiser = Quantiser(TINY)
    before = quantiser.codes.clone()
    z = torch.randn(4, 6, 3, 3)
    quantiser.update(z, quantiser.indices(z, 2), decay=0.5, skip=1)
    assert torch.equal(quantiser.codes[0], before[0])
    assert not torch.equal(quantiser.codes[1], before[1])


def test_dead_codes_come_back_to_life() -> None:
    torch.manual_seed(5)
    quantiser, generator = Quantiser(TINY), torch.Generator().manual_seed(0)
    quantiser.codes[:, 5:] = 1000.0  # nothing will ever fall there
    quantiser.seed_averages()
    z = torch.randn(64, 6, 4, 4)
    used = lambda: [len(row.unique()) for row in quantiser.indices(z, 2).transpose(0, 1).flatten(1)]  # noqa: E731
    assert max(used()) <= 5
    for _ in range(60):
        quantiser.update(z, quantiser.indices(z, 2), decay=0.9)
    moved = quantiser.revive(z, quantiser.indices(z, 2), generator)
    assert moved == 22
    assert min(used()) >= 14


# the interface


def test_bytes_round_trip_and_length(tiny: VQGAN) -> None:
    for stages in (1, 2):
        codec = VQGANCodec(tiny, (3, 20, 14), stages)
        images = torch.rand(5, 3, 20, 14)
        z = codec.encode(images)
        assert tuple(z.shape[1:]) == codec.latent_shape == (6, 5, 4)
        stored = codec.to_bytes(z)
        assert {len(row) for row in stored} == {codec.exemplar_bytes} == {packed_bytes(stages * 20, 16)}
        back = codec.from_bytes(stored)
        torch.testing.assert_close(back, codec.quantise(z), atol=1e-6, rtol=0)
        first = unpack(stored, stages * 20, 16)[0].reshape(stages, 5, 4)
        code = sum(tiny.quantiser.codebooks(2)[s, first[s, 2, 3]] for s in range(stages))
        torch.testing.assert_close(back[0, :, 2, 3], code)
        with pytest.raises(DataError):
            codec.from_bytes([stored[0][:-1]])
    assert VQGANCodec(tiny, (3, 20, 14)).from_bytes([]).shape == (0, 6, 5, 4)


def test_refining_brings_every_picture_closer_or_leaves_it(tiny: VQGAN) -> None:
    images = torch.from_numpy(structured(24, 7)).float() / 255
    start.initialise(tiny, [images], torch.Generator().manual_seed(0))
    errors = []
    for sweeps in (0, 1, 3):
        codec = VQGANCodec(tiny, (3, 16, 16), sweeps=sweeps)
        stored = codec.to_bytes(codec.encode(images))
        assert {len(row) for row in stored} == {codec.exemplar_bytes}
        decoded = codec.decode(codec.from_bytes(stored))
        errors.append((decoded - images).square().flatten(1).sum(1))
    assert bool((errors[1] <= errors[0] * 1.0001).all())
    assert bool((errors[2] <= errors[0] * 1.0001).all())
    assert float(errors[1].sum()) < 0.99 * float(errors[0].sum())
    odd = VQGANCodec(tiny, (3, 5, 3), sweeps=1)
    assert odd.decode(odd.encode(torch.rand(2, 3, 5, 3))).shape == (2, 3, 5, 3)


def test_a_picture_that_refining_takes_further_away_keeps_its_first_codes(tiny: VQGAN, monkeypatch) -> None:
    """Of a decoder that is far from linear some moves help where they are made, and harm the picture as a whole."""
    torch.nn.init.normal_(tiny.decoder.out.weight, std=1.0)
    images = torch.from_numpy(structured(200, 16)).float() / 255
    codec, met = VQGANCodec(tiny, (3, 16, 16)), []
    errors = codec._errors
    monkeypatch.setattr(codec, "_errors", lambda *of: met.append(errors(*of).flatten(1).sum(1)) or errors(*of))
    start = codec.encode(images)
    found = codec.refine(images, start)
    first, worse = met[0], met[-1] > met[0]
    assert bool(worse.any())
    assert torch.equal(found[worse], start[worse])
    after = errors(images, codec.model.quantiser.lookup(codec.indices(found))).flatten(1).sum(1)
    assert bool((after <= first * 1.0001).all())


@pytest.mark.parametrize("side", [(32, 32), (64, 64), (224, 224), (28, 28), (33, 47), (5, 3), (1, 1)])
def test_same_weights_serve_every_size(tiny: VQGAN, side: tuple[int, int]) -> None:
    codec = VQGANCodec(tiny, (3, *side))
    images = torch.rand(1, 3, *side)
    decoded = codec.decode(codec.from_bytes(codec.to_bytes(codec.encode(images))))
    assert decoded.shape == images.shape
    assert 0 <= float(decoded.min()) <= float(decoded.max()) <= 1


def test_padding_mirrors_like_numpy() -> None:
    for height, width in ((5, 7), (3, 2), (9, 8)):
        images = torch.rand(2, 3, height, width)
        bottom, right = -height % 8, -width % 8
        expected = np.pad(images.numpy(), ((0, 0), (0, 0), (0, bottom), (0, right)), mode="reflect")
        assert np.array_equal(reflect_pad(images, 8).numpy(), expected)


def test_the_network_is_frozen_but_z_is_not(tiny: VQGAN) -> None:
    codec = VQGANCodec(tiny, (3, 16, 16))
    assert not any(p.requires_grad for p in tiny.parameters())
    assert not tiny.training
    z = codec.encode(torch.rand(1, 3, 16, 16)).requires_grad_()
    codec.decode(z).sum().backward()
    assert z.grad is not None
    assert float(z.grad.abs().sum()) > 0


def test_shared_bytes_count_decoder_and_codebooks_in_use(tiny: VQGAN) -> None:
    def written(name: str) -> int:  # a byte a weight and two a filter; two a bias
        layers = [m for m in getattr(tiny, name).modules() if isinstance(m, torch.nn.Conv2d)]
        return sum(m.weight.numel() + 4 * m.out_channels for m in layers)

    codec = VQGANCodec(tiny, (3, 16, 16), stages=1)
    assert codec.shared_bytes == written("decoder") + (16 * 4 + 2) + (6 * 4 + 2)
    assert codec.encoder_bytes == written("encoder")
    assert VQGANCodec(tiny, (3, 16, 16), 2).shared_bytes == written("decoder") + 2 * (16 * 4 + 2 + 6 * 4 + 2)


def test_weights_are_rounded_to_half_a_step_and_once_only(tiny: VQGAN) -> None:
    for name, weight in tiny.state_dict().items():
        (again,) = restored(stored({name: weight})).values()
        rows, met = weight.reshape(len(weight), -1), again.reshape(len(weight), -1)
        bound = rows.abs().amax(1, keepdim=True) / 127 * 0.501 + 1e-7 if weight.ndim > 1 else rows.abs() * 2.0**-11
        assert bool(((rows - met).abs() <= bound).all()), name
        assert all(torch.equal(a, b) for a, b in zip(stored({name: weight}).values(), stored({name: again}).values(),
                                                     strict=True)), name


def test_int8_costs_less_than_a_tenth_of_a_decibel_and_half_the_bytes() -> None:
    for channels, most in ((1, 100_000), (3, 250_000)):
        made = json.loads(shipped(channels).with_suffix(".json").read_text())["int8"]
        assert all(row["float16"] - row["int8"] < 0.1 for row in made["psnr"])
        codec = load(shipped(channels), stages=4)
        assert codec.shared_bytes == {r["stages"]: r["bytes"] for r in made["shared_bytes"]}[4] < most


def test_digest_follows_weights_shape_and_stages(tiny: VQGAN) -> None:
    base = VQGANCodec(tiny, (3, 16, 16))
    digests = {base.digest, VQGANCodec(tiny, (3, 16, 17)).digest, VQGANCodec(tiny, (3, 16, 16), 1).digest}
    assert VQGANCodec(tiny, (3, 16, 16), 2).digest == base.digest
    tiny.decoder.linear.weight.view(-1)[0] += 1
    digests.add(VQGANCodec(tiny, (3, 16, 16)).digest)
    assert len(digests) == 4


def test_mistakes_are_told(tiny: VQGAN) -> None:
    for bad in ({"channels": 2}, {"factor": 6}, {"codes": 1}, {"stages": 0}, {"width": 2**40}, {"blocks": 1.0}):
        with pytest.raises(DataError, match=next(iter(bad))):
            VQGANConfig(**bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="channels"):
        VQGANCodec(tiny, (1, 16, 16))
    with pytest.raises(DataError, match="stages"):
        VQGANCodec(tiny, (3, 16, 16), 3)
    with pytest.raises(DataError, match="shape"):
        VQGANCodec(tiny, (3, 16, 16)).encode(torch.rand(1, 3, 8, 8))
    with pytest.raises(DataError, match="channels"):
        shipped(2)


# files


def test_a_saved_decoder_comes_back(tiny: VQGAN, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.safetensors"
    save(tiny, path)
    state = torch.get_rng_state()
    again = load(path, (3, 16, 16))
    assert torch.equal(torch.get_rng_state(), state)
    assert again.digest == VQGANCodec(tiny, (3, 16, 16)).digest
    images = torch.rand(3, 3, 16, 16)
    torch.testing.assert_close(again.encode(images), tiny.encoder(images), atol=5e-3, rtol=5e-3)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_diverged_model_is_not_saved(tiny: VQGAN, tmp_path: Path) -> None:
    with torch.no_grad():
        tiny.decoder.linear.weight[0] = 1e8  # a step of 8e5
    with pytest.raises(DataError, match="float16"):
        save(tiny, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_truncated_and_bit_flipped_files_are_refused(tiny: VQGAN, tmp_path: Path) -> None:
    path, bad = tmp_path / "a.safetensors", tmp_path / "bad.safetensors"
    save(tiny, path)
    raw = path.read_bytes()
    digest = load(path).digest
    rng = np.random.default_rng(0)
    for cut in (0, 7, 8, 100, len(raw) // 2, len(raw) - 1):
        bad.write_bytes(raw[:cut])
        with pytest.raises(DataError, match=r"bad\.safetensors"):
            load(bad)
    header = 8 + int.from_bytes(raw[:8], "little")
    places = np.concatenate([np.arange(8), rng.integers(8, header, 150), rng.integers(header, len(raw), 50)])
    for place in places:
        damaged = bytearray(raw)
        damaged[place] ^= 1 << int(rng.integers(8))
        bad.write_bytes(bytes(damaged))
        try:
            assert load(bad).digest == digest  # a flip in white space or the order of keys may be harmless
        except DataError:
            continue
    with pytest.raises(DataError, match="read"):
        load(tmp_path / "absent.safetensors")


def test_pipes_devices_and_endless_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    for odd in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(DataError, match="pipe or device"):
            load(odd)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1000)
    large = tmp_path / "large.safetensors"
    large.write_bytes(bytes(1001))
    with pytest.raises(DataError, match=r"large\.safetensors: more bytes than"):
        load(large)
    large.write_bytes(bytes(1000))
    with pytest.raises(DataError, match="header"):
        load(large)


def test_lying_files_are_refused(tiny: VQGAN, tmp_path: Path) -> None:
    path, bad = tmp_path / "a.safetensors", tmp_path / "bad.safetensors"
    save(tiny, path)
    weights = load_tensors(path.read_bytes())
    raw = path.read_bytes()
    meta = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    config = asdict(TINY)

    def other(**values: object) -> str:
        return json.dumps({**config, **values})

    name = "quantiser.codes"
    lies = {
        "version": (weights, {**meta, "version": "1"}),
        "not a VQGAN": (weights, {**meta, "format": "x"}),
        "hash": (weights, {**meta, "sha256": "0" * 64}),
        "lacks": ({k: v for k, v in weights.items() if k != name}, meta),
        "extra": ({**weights, "more": torch.zeros(1)}, meta),
        "header says": ({**weights, name: weights[name][:, :8].contiguous()}, meta),
        "float32": ({**weights, name: weights[name].float()}, meta),
        "finite": ({**weights, f"{name}/step": weights[f"{name}/step"] * float("nan")}, meta),
        "width": (weights, {**meta, "config": other(width=2**60)}),
        "fields": (weights, {**meta, "config": other(more=1)}),
        "says": (weights, {**meta, "config": other(width=1024, blocks=32)}),
        "configuration": (weights, {**meta, "config": "{"}),
    }
    for told, (tensors, header) in lies.items():
        bad.write_bytes(save_tensors(tensors, header))
        with pytest.raises(DataError, match=told):
            load(bad)


# training


def test_training_lowers_the_loss_and_repeats_by_seed(tmp_path: Path) -> None:
    images, held_out = structured(200, 0), structured(24, 1)
    options = TrainingOptions(batch=16, adversarial=0.3)
    rows: list[dict[str, float]] = []

    def run(seed: int, out: Path | None = None) -> dict:
        return train_decoder(
            images,
            TINY,
            steps=60,
            seed=seed,
            held_out=held_out,
            options=options,
            progress=rows.append,
            out=out,
        )

    out = tmp_path / "w.safetensors"
    first, again, different = run(3, out), run(3), run(4)
    assert first["loss_last"] < first["loss_first"] - 0.03
    assert len(rows) == 180
    assert first["digest"] == again["digest"] != different["digest"]
    assert [entry["stages"] for entry in first["held_out"]] == [1, 2]
    coarse, fine = first["held_out"]
    assert coarse["psnr"] + 1 < fine["psnr"]
    assert all(0 < share <= 1 for share in fine["codes_used"])
    assert all(1 < value <= 16 for value in fine["perplexity"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.json", "w.png", "w.safetensors"]
    assert json.loads((tmp_path / "w.json").read_text())["digest"] == first["digest"]
    assert load(out, (3, 16, 16)).digest == first["digest"]
    resumed = train_decoder(
        images, TINY, steps=1, held_out=held_out, resume=out, options=TrainingOptions(learning_rate=1e-6)
    )
    assert abs(resumed["held_out"][-1]["psnr"] - fine["psnr"]) < 0.3


@pytest.mark.parametrize("amount", [{"minutes": math.nan}, {"minutes": math.inf}, {"minutes": 0.0}, {"steps": 0}])
def test_training_that_would_not_end_or_not_begin(amount: dict[str, Any]) -> None:
    def stop(_: object) -> None:
        raise AssertionError("a step was made")

    with pytest.raises(DataError, match="above zero"):
        train_decoder(structured(8, 0), TINY, held_out=structured(8, 1), progress=stop, **amount)


def test_the_shortest_training_has_a_loss() -> None:
    report = train_decoder(structured(40, 0), TINY, held_out=structured(8, 1), minutes=1e-9)
    assert report["steps"] == 1
    assert math.isfinite(report["loss_first"])


def test_a_place_that_cannot_be_written_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "taken.png").mkdir()

    def stop(_: object) -> None:
        raise AssertionError("a step was made")

    places = {
        "x.png": "ends in .safetensors", "x.json": "ends in .safetensors", "x": "ends in .safetensors",
        "folder.safetensors": "a folder", "taken.safetensors": "a folder", "file/x.safetensors": "cannot be written",
        "n" * 230 + ".safetensors": "cannot be written",  # room for the name, but not for that of its first part
    }  # fmt: skip
    images = structured(8, 0)
    for name, told in places.items():
        with pytest.raises(UserError, match=told):
            train_decoder(images, TINY, held_out=images, steps=1, progress=stop, out=tmp_path / name)
    files.check_out(tmp_path / "new" / "deep" / "x.safetensors")
    assert not list((tmp_path / "new" / "deep").iterdir())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.safetensors", "new", "taken.png"]


@pytest.mark.parametrize(("channels", "height", "width", "tile", "count"), [
    (1, 8, 8, (96, 96), 10), (3, 32, 32, (96, 96), 10), (1, 28, 28, (112, 112), 9),
    (3, 100, 200, (200, 100), 5), (3, 20, 400, (256, 13), 4), (3, 300, 300, (256, 256), 4),
])  # fmt: skip
def test_reconstructions_can_be_seen(channels: int, height: int, width: int, tile: tuple[int, int], count: int) -> None:
    """Tiles of a readable size on white, originals above what comes back, words at the left, numbers below."""
    torch.manual_seed(0)
    model = VQGAN(VQGANConfig(channels=channels, factor=4, codes=16, stages=2, width=8, encoder_width=8))
    pictures = np.random.default_rng(0).integers(0, 200, (17, channels, height, width), np.uint8)  # nowhere white
    points = [evaluate(model, pictures, stages) for stages in (1, 2)]
    image = reconstructions(model, pictures, points)
    page = np.asarray(image)
    high = max(tile[1], 44)
    assert image.mode == "RGB"
    assert image.height == 48 + 3 * high + 2 * 35
    left = image.width - 24 - count * (tile[0] + 10) + 10
    assert 150 < left < 300
    chosen = np.linspace(0, 16, count).round().astype(int)
    shown = torch.from_numpy(pictures[chosen]).float() / 255
    tops = [24, 24 + high + 10, 24 + 2 * high + 10 + 35]
    for top, point in zip(tops, (None, *points), strict=True):
        row = shown
        if point is not None:
            codec = VQGANCodec(model, (channels, height, width), point["stages"])
            row = codec.decode(codec.quantise(codec.encode(shown)))
        first = top + high // 2 - tile[1] // 2
        for i, picture in enumerate((row * 255).round().byte().numpy()):
            at = left + i * (tile[0] + 10)
            found = page[first : first + tile[1], at : at + tile[0]]
            if tile[0] >= width:  # enlarged: every pixel is a square
                scale = tile[0] // width
                expected = np.broadcast_to(picture, (3, height, width)).repeat(scale, 1).repeat(scale, 2)
                assert np.abs(found.transpose(2, 0, 1).astype(int) - expected).max() <= 1
            assert (found == 255).mean() < 0.1
            assert (page[first : first + tile[1], at + tile[0] : at + tile[0] + 10] == 255).all()
        words = page[top : top + high, :left]
        assert 100 < (words.min(2) < 160).sum() < words[..., 0].size / 3
        if point is not None:
            numbers = page[first + tile[1] + 1 : first + tile[1] + 20, left:]
            assert (numbers.min(2) < 160).any()


def test_evaluate_agrees_with_a_loop_over_pictures(tiny: VQGAN) -> None:
    pictures = structured(5, 2)
    told = evaluate(tiny, pictures, 2)
    assert tiny.training
    assert all(p.requires_grad for p in tiny.parameters())
    codec = VQGANCodec(tiny, (3, 16, 16))
    values, errors = [], []
    for picture in pictures:
        image = torch.from_numpy(picture)[None].float() / 255
        decoded = codec.decode(codec.quantise(codec.encode(image)))
        error = np.mean((np.round(decoded.numpy() * 255) / 255 - image.numpy()) ** 2)
        errors.append(error)
        values.append(10 * np.log10(1 / error))
    assert told["psnr"] == pytest.approx(np.mean(values), abs=1e-3)
    assert told["psnr_of_mean_mse"] == pytest.approx(10 * np.log10(1 / np.mean(errors)), abs=1e-3)


def test_starting_point_is_the_best_linear_code() -> None:
    """Before the first step, with codes that cost nothing, the model is the projection on the components."""
    config = VQGANConfig(
        channels=1, factor=4, codes=4, stages=1, code_dim=3, code_rank=3, width=12, encoder_width=12, blocks=1
    )
    images = torch.from_numpy(structured(300, 5, 8, 1)).float() / 255
    model = VQGAN(config)
    start.initialise(model, [images], torch.Generator().manual_seed(0))
    patches = images.reshape(300, 2, 4, 2, 4).transpose(2, 3).reshape(-1, 16).numpy()
    singular = np.linalg.svd(patches - patches.mean(0), compute_uv=False)
    with torch.no_grad():
        error = float((model.decoder(model.encoder(images)) - images).square().sum())
    assert error == pytest.approx(float((singular[3:] ** 2).sum()), rel=1e-3)


def test_arrays_of_two_sizes_train_together() -> None:
    config = VQGANConfig(
        channels=1, factor=4, codes=8, stages=1, code_dim=4, code_rank=4, width=12, encoder_width=12, blocks=0
    )
    arrays = [structured(40, 0, 10, 1), structured(40, 1, 8, 1)]
    report = train_decoder(arrays, config, steps=5, held_out=arrays[0], options=TrainingOptions(batch=8))
    assert report["steps"] == 5
    assert len(report["training_pictures"]) == 2


def test_training_refuses_what_it_cannot_use() -> None:
    images = structured(8, 0)
    unusable: list[Any] = [images[:, :1], images.astype(np.float32), images[:0]]
    amounts: list[dict[str, Any]] = [{}, {"steps": 1, "minutes": 1.0}, {"steps": -1}]
    for bad in unusable:
        with pytest.raises(DataError, match="uint8"):
            train_decoder(bad, TINY, steps=1, held_out=images)
    for amount in amounts:
        with pytest.raises(DataError, match="minutes"):
            train_decoder(images, TINY, held_out=images, **amount)
    with pytest.raises(DataError, match="batch"):
        train_decoder(images, TINY, held_out=images, steps=1, options=TrainingOptions(batch=1))
    with pytest.raises(DataError, match="points"):
        train_decoder(images, TINY, held_out=images, steps=1, points=(1,))


# what ships


def crops(side: int) -> np.ndarray:
    """Crops of the two photographs that come with scikit-learn, shrunk four times first."""
    cut = []
    for photograph in load_sample_images().images:
        small = torch.nn.functional.avg_pool2d(torch.tensor(photograph).permute(2, 0, 1).float(), 4)
        rows, columns = small.shape[1] // side, small.shape[2] // side
        tiles = small[:, : rows * side, : columns * side].reshape(3, rows, side, columns, side)
        cut.append(tiles.permute(1, 3, 0, 2, 4).reshape(-1, 3, side, side))
    return torch.cat(cut).round().to(torch.uint8).numpy()


@pytest.mark.parametrize("channels", [1, 3])
def test_shipped_weights_are_small_and_say_how_they_were_made(channels: int) -> None:
    path = shipped(channels)
    codec = load(path)
    assert path.stat().st_size < 1_000_000
    assert codec.shared_bytes + codec.encoder_bytes < path.stat().st_size
    made = json.loads(path.with_suffix(".json").read_text())
    assert made["digest_of_weights"] == vqgan.weights_digest(codec.model)
    assert {"command", "seed", "data", "minutes", "steps", "measured"} <= made.keys()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_commands_beside_the_weights_can_be_typed(channels: int) -> None:
    """Their imports work, and what they call takes the arguments that they name."""
    made = json.loads(shipped(channels).with_suffix(".json").read_text())
    lines = ast.parse("\n".join(made["command"])).body
    known: dict[str, Any] = {}
    for line in lines:
        if isinstance(line, ast.Import | ast.ImportFrom):
            exec(ast.unparse(line), known)
    calls = [node for line in lines for node in ast.walk(line) if isinstance(node, ast.Call)]
    names = [ast.unparse(call.func) for call in calls]
    assert {"train_decoder", "VQGANConfig", "TrainingOptions", "load_model", "count_codes", "save"} <= set(names)
    for name, call in zip(names, calls, strict=True):
        inspect.signature(known[name]).bind(*call.args, **{str(k.arg): k.value for k in call.keywords})
        if name == "VQGANConfig":
            assert asdict(eval(ast.unparse(call), known)) == made["config"]
        if name == "TrainingOptions":
            eval(ast.unparse(call), known)
        if name == "count_codes":  # a sequence of arrays, as many as the data
            assert isinstance(call.args[1], ast.List)
            assert len(call.args[1].elts) == len(made["data"])


FLOORS_COLOUR = {4: 28.5, 8: 31.0}


@pytest.mark.parametrize(("stages", "size"), [(4, 72), (8, 144)])
def test_shipped_colour_decoder_on_photographs(stages: int, size: int) -> None:
    codec = load(shipped(3), stages=stages)
    assert codec.exemplar_bytes == size
    told = evaluate(codec.model, crops(32), stages)
    assert told["psnr"] > FLOORS_COLOUR[stages]


def test_shipped_grey_decoder_on_digits() -> None:
    codec = load(shipped(1), (1, 8, 8))
    digits = (load_digits(return_X_y=True)[0].reshape(-1, 1, 8, 8) * 255 / 16).round().astype(np.uint8)[-300:]
    told = evaluate(codec.model, digits, codec.stages)
    assert told["psnr"] > 21


def test_a_decoder_moves_to_a_device_with_all_its_weights():
    """`meta` stands for a device that holds no numbers: whatever stayed behind would raise."""
    codec = load(shipped(3)).to("meta")
    assert codec.device.type == "meta"
    z = codec.encode(torch.empty(2, 3, 32, 32, device="meta"))
    assert z.device.type == codec.quantise(z).device.type == codec.draft(z).device.type == "meta"
    assert codec.decode(z).shape == (2, 3, 32, 32)
