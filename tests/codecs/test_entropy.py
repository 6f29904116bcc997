"""Entropy coding of codes: exact there and back, as short as the frequencies say, and no damaged byte believed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from protocore.cli import main
from protocore.codecs import codec_named
from protocore.codecs.entropy import EntropyCoder
from protocore.codecs.vqgan import VQGAN, VQGANCodec, VQGANConfig, load_model, save, shipped
from protocore.codecs.vqgan.measuring import count_codes
from protocore.errors import DataError, UserError
from protocore.memory.pack import read_pack
from protocore.memory.store import ExemplarStore
from protocore.runs.configure import configure
from protocore.runs.job import run


def digits() -> torch.Tensor:
    return torch.from_numpy((load_digits().images * 255 / 16).round().astype(np.uint8)[:, None])


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 600), st.integers(1, 4), st.integers(1, 40), st.integers(0, 5), st.integers(0, 2**31))
def test_round_trip_is_exact(codes: int, stages: int, positions: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    frequencies = rng.exponential(size=(stages, codes)) ** rng.integers(1, 4) + 1e-3
    coder = EntropyCoder(frequencies)
    indices = rng.integers(0, codes, (rows, stages, positions))
    stored = coder.pack(indices)
    assert np.array_equal(coder.unpack(stored, positions), indices)
    # One by one it is the same bytes: an exemplar can be dropped or moved by itself.
    assert stored == [coder.pack(row[None])[0] for row in indices]


def test_the_length_is_the_information_to_a_few_bytes() -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(512, 0.05), 2) + 1e-7
    shares /= shares.sum(1, keepdims=True)
    indices = np.stack([rng.choice(512, (50, 200), p=row) for row in shares], 1)
    stored = EntropyCoder(shares).pack(indices)
    for row, data in zip(indices, stored, strict=True):
        bits = -sum(np.log2(share[codes]).sum() for share, codes in zip(shares, row, strict=True))
        assert bits / 8 - 1 <= len(data) <= bits / 8 + 4
    assert np.mean([len(data) for data in stored]) < 0.75 * 2 * 200 * 9 / 8


def test_no_damaged_byte_is_believed() -> None:
    rng = np.random.default_rng(1)
    coder = EntropyCoder(rng.exponential(size=(3, 64)) + 0.01)
    indices = rng.integers(0, 64, (1, 3, 16))
    (data,) = coder.pack(indices)
    told = 0
    for _ in range(2000):
        mutant = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            mutant[rng.integers(len(mutant))] = rng.integers(256)
        if rng.random() < 0.3:
            mutant = mutant[: rng.integers(len(mutant) + 1)]
        if rng.random() < 0.2:
            mutant += rng.bytes(rng.integers(1, 9))
        try:  # another picture may be a valid one, but then these are its very bytes
            found = coder.unpack([bytes(mutant)], 16)
            assert coder.pack(found) == [bytes(mutant)]
        except DataError:
            told += 1
    assert told > 200
    for lie in (b"\0", data + b"\0", b"\xff" * 10_000):
        with pytest.raises(DataError):
            coder.unpack([lie], 16)
    with pytest.raises(DataError, match="0\\.\\.63"):
        coder.pack(np.full((1, 3, 16), 64))


def test_the_same_pictures_in_fewer_bytes(tmp_path: Path) -> None:
    large = digits()[::9].repeat_interleave(3, 2).repeat_interleave(3, 3)  # 24 x 24: enough codes for a coder to pay
    model = load_model(shipped(1))
    count_codes(model, [large[:150].numpy()])
    save(model, tmp_path / "digits.safetensors")
    plain = codec_named("vqgan:4", (1, 24, 24))
    short = codec_named(f"vqgan:{tmp_path}/digits.safetensors:4,entropy", (1, 24, 24))
    z = plain.encode(large[150:].float() / 255)  # not among the pictures that were counted
    stored = short.to_bytes(z)
    assert torch.equal(short.from_bytes(stored), plain.from_bytes(plain.to_bytes(z)))
    assert np.mean([len(s) for s in stored]) < 0.9 * plain.exemplar_bytes
    assert short.exemplar_bytes is None
    assert short.spec == "vqgan:4,entropy"
    assert short.digest != plain.digest
    assert short.shared_bytes == plain.shared_bytes + 2 * 4 * 512
    store = ExemplarStore(short)
    store.add(large[:20], torch.arange(20))
    again = ExemplarStore(short)
    again.load(store.tensors())
    assert torch.equal(again.images, store.images)


def test_frequencies_are_those_of_the_pictures_and_travel_with_the_weights(tmp_path: Path) -> None:
    model = load_model(shipped(1))
    pictures = digits().numpy()
    count_codes(model, [pictures], len(pictures))
    codec = VQGANCodec(model, (1, 8, 8))
    codes = codec.indices(codec.encode(torch.from_numpy(pictures).float() / 255))
    for stage in range(4):
        counts = np.bincount(codes[:, stage].flatten().numpy(), minlength=512) + 0.5
        assert np.allclose(model.frequencies[stage].numpy(), counts / counts.mean(), rtol=1e-3)
    save(model, tmp_path / "a.safetensors")
    assert torch.equal(load_model(tmp_path / "a.safetensors").frequencies, model.frequencies)


def test_weights_without_frequencies_say_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = VQGAN(VQGANConfig(channels=1, factor=4, codes=16, stages=2, code_dim=8, code_rank=4, width=12,
                              encoder_width=12, blocks=1))
    save(model, tmp_path / "old.safetensors")
    assert codec_named(f"vqgan:{tmp_path}/old.safetensors", (1, 8, 8)).exemplar_bytes == 4
    with pytest.raises(DataError, match="how often each code occurs"):
        codec_named(f"vqgan:{tmp_path}/old.safetensors,entropy", (1, 8, 8))
    model.frequencies = torch.zeros(2, 16)
    save(model, tmp_path / "bad.safetensors")
    with pytest.raises(DataError, match="above zero"):
        load_model(tmp_path / "bad.safetensors")


def test_without_the_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(UserError, match="protocore\\[entropy\\]"):
        codec_named("vqgan:1,entropy", (1, 8, 8))


@pytest.mark.parametrize("method", ["er", "protocore"])
def test_a_run_within_a_budget_ends_in_a_pack_that_verifies(method: str, tmp_path: Path) -> None:
    flags = {"benchmark": "digits", "images_per_class": 30, "epochs": 1, "tasks": 2, "threads": 1, "width": 8,
             "method": method, "codec": "vqgan:4,entropy", "budget": 2500}
    result = run(configure(flags), tmp_path)
    assert (tmp_path / "memory.safetensors").stat().st_size == result.bytes_kept <= 2500
    pack = read_pack(tmp_path / "memory.pack")
    assert {group.codec for group in pack.info.groups.values()} == {"vqgan:4,entropy"}
    assert main(["pack", "verify", str(tmp_path / "memory.pack")]) == 0
