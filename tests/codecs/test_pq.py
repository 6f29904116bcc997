"""Product-quantised feature codes: the search and the codebook against slow references, and what is kept of them."""

import json

import numpy as np
import pytest
import torch

from helpers import learner, noise, task_of
from protocore.cli import main
from protocore.codecs import codec_named, codec_told
from protocore.codecs.base import Codec
from protocore.codecs.pq import CODES, LEARNED_FROM, OCTAVE, ProductQuantiser, rotation
from protocore.data.augment import to_float
from protocore.errors import BudgetError, DataError, UserError
from protocore.learn.learner import Learner
from protocore.memory.pack import read_pack, verify
from protocore.memory.plan import Horizon, plan_of

SHAPE = (40, 1, 1)


def features(count: int, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    """Feature pictures (uint8) that lie near a few directions, as those of a network do."""
    chance = np.random.default_rng(seed)
    dim = shape[0]
    ways = np.random.default_rng(77).normal(size=(6, dim))
    z = 110 + 25 * chance.normal(size=(count, 6)) @ ways + 4 * chance.normal(size=(count, dim))
    return torch.from_numpy(z.clip(0, 255).round().astype(np.uint8)).view(-1, *shape)


def fitted(size: int = 9, shape: tuple[int, int, int] = SHAPE, count: int = 300) -> ProductQuantiser:
    codec = ProductQuantiser(shape, size)
    codec.fit(to_float(features(count, shape=shape)))
    return codec


def through(codec: Codec, images: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.from_bytes(codec.to_bytes(codec.encode(to_float(images)))))


def error(codec: Codec, images: torch.Tensor) -> float:
    """Squared error over the squared distance from the mean of the pictures it was fitted to."""
    x = to_float(images)
    return float((through(codec, images) - x).square().sum() / (x - to_float(features(300)).mean(0)).square().sum())


# -- coding ------------------------------------------------------------------------------------------------------


def test_every_part_is_the_nearest_code_at_the_distance_of_its_vector():
    codec, images = fitted(), features(20, seed=1)
    z = codec.encode(to_float(images)).double().numpy()
    book = (codec.codes.float() * codec.step.float()).double().numpy()
    for row, stored in zip(z, codec.to_bytes(codec.encode(to_float(images))), strict=True):
        level = round(float(OCTAVE * np.log2(np.sqrt((row**2).mean())))) + 255
        assert stored[0] == level
        for part, index in zip((row / 2 ** ((level - 255) / OCTAVE)).reshape(8, 5), stored[1:], strict=True):
            distances = ((book - part) ** 2).sum(1)
            assert distances[index] <= distances.min() + 1e-6


def test_latents_are_turned_differences_from_the_mean_and_turned_back():
    codec, images = fitted(), to_float(features(7, seed=2))
    z = codec.encode(images)
    torch.testing.assert_close(codec.decode(z), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(z.norm(dim=1), (images.flatten(1) - codec.mean.float() / 255).norm(dim=1))
    turn = rotation(44, 40)
    torch.testing.assert_close(turn.T @ turn, torch.eye(40), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [2, 7, 9, 41])
def test_bytes_come_back_as_what_they_were_made_of(size):
    codec = fitted(size)
    stored = codec.to_bytes(codec.encode(to_float(features(6, seed=3))))
    assert {len(row) for row in stored} == {size} == {codec.exemplar_bytes}
    z = codec.from_bytes(stored)
    assert z.shape == (6, *codec.latent_shape)
    rows = codec.encode(to_float(features(6, seed=3))).requires_grad_()
    quantised = codec.quantise(rows)
    torch.testing.assert_close(quantised, z)
    (slope,) = torch.autograd.grad(codec.decode(quantised).sum(), rows)
    assert bool((slope != 0).any())
    assert codec.from_bytes([]).shape == (0, *codec.latent_shape)
    with pytest.raises(DataError, match=f"needs {size}"):
        codec.from_bytes([b"x" * (size + 1)])


def test_a_vector_that_is_the_mean_comes_back_as_the_mean():
    codec = fitted()
    mean = codec.mean.view(1, *SHAPE)
    torch.testing.assert_close(through(codec, mean), to_float(mean), atol=1e-3, rtol=0)


# -- the codebook ------------------------------------------------------------------------------------------------


def slow_kmeans(vectors: np.ndarray, codes: int, rounds: int, seed: int) -> np.ndarray:
    """Lloyd's algorithm, a vector at a time."""
    centres = vectors[np.random.default_rng(seed).permutation(len(vectors))[:codes]].copy()
    for _ in range(rounds):
        sums, counts = np.zeros_like(centres), np.zeros(codes)
        for vector in vectors:
            nearest = ((centres - vector) ** 2).sum(1).argmin()
            sums[nearest] += vector
            counts[nearest] += 1
        centres[counts > 0] = sums[counts > 0] / counts[counts > 0, None]
    return centres


def spread(vectors: np.ndarray, centres: np.ndarray) -> float:
    """Mean squared distance to the nearest centre."""
    return float(np.mean([((centres - vector) ** 2).sum(1).min() for vector in vectors]))


def test_the_codes_are_as_near_as_those_of_a_slow_k_means():
    images = features(1100)
    codec = ProductQuantiser(SHAPE, 9)
    codec.fit(to_float(images))
    z = codec.encode(to_float(images))
    shapes = (z / z.square().mean(1, keepdim=True).sqrt()).view(-1, 5).numpy()
    assert len(shapes) >= LEARNED_FROM  # no noise among them
    sample = shapes[:: len(shapes) // 2500]
    mine = (codec.codes.float() * codec.step.float()).numpy()
    others = slow_kmeans(sample, CODES, 5, seed=0)
    fresh = np.random.default_rng(1).permutation(shapes)[:1500]
    assert spread(fresh, mine) < spread(fresh, others) * 1.03


def test_more_bytes_are_nearer_and_learning_helps():
    new = features(100, seed=4)
    found = [error(fitted(size), new) for size in (3, 5, 9, 21)]
    assert found == sorted(found, reverse=True)
    assert found[0] < 0.95
    assert found[-1] < 0.1
    assert error(ProductQuantiser(SHAPE, 9), new) > 1.3 * error(fitted(9), new)


@pytest.mark.parametrize("count", [1, 2, 12])
def test_few_pictures_are_enough_and_noise_stands_in_for_more(count):
    codec = fitted(9, count=count)
    assert codec.learned
    assert error(codec, features(50, seed=5)) < (2.0 if count == 1 else 0.8)
    kept = codec.codes.float() * codec.step.float()
    z = codec.encode(to_float(features(count)))
    shapes = (z / z.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)).view(-1, 5)
    nearest = torch.cdist(shapes, kept).amin(1)
    assert float((nearest < 0.02).float().mean()) < 0.05  # no code is a part of a picture


def test_vectors_that_are_the_mean_say_nothing_of_shapes():
    away = torch.from_numpy(np.random.default_rng(0).integers(-40, 41, (300, 64, 1, 1)))
    images = 128 + torch.cat([away, -away, torch.zeros(600, 64, 1, 1, dtype=torch.int64)])
    codec = ProductQuantiser((64, 1, 1), 5)
    codec.fit(to_float(images.to(torch.uint8)))
    assert bool((codec.mean == 128).all())
    assert float(codec.book.square().mean(1).sqrt().min()) > 0.1


def test_the_same_pictures_give_the_same_codes_and_nobody_s_dice_are_touched():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other = fitted(), fitted()
    assert torch.equal(torch.get_rng_state(), before)
    assert one.digest == other.digest != fitted(count=200).digest != ProductQuantiser(SHAPE, 9).digest
    assert len({ProductQuantiser(SHAPE, size).digest for size in (8, 9)}) == 2


def test_a_codebook_is_taken_up_whole_or_not_at_all():
    codec, again, images = fitted(), ProductQuantiser(SHAPE, 9), features(9, seed=6)
    assert again.state() == {}
    again.load_state(codec.state())
    assert again.digest == codec.digest
    assert torch.equal(through(again, images), through(codec, images))
    assert {name: (t.dtype, tuple(t.shape)) for name, t in codec.state().items()} == codec.shapes()
    for broken in ({"mean": codec.mean}, codec.state() | {"codes": torch.zeros(CODES, 4, dtype=torch.int8)},
                   codec.state() | {"mean": codec.mean.float()}, codec.state() | {"more": codec.mean},
                   codec.state() | {"step": torch.tensor([float("nan")]).half()}):
        with pytest.raises(DataError, match="codebook of pq"):
            ProductQuantiser(SHAPE, 9).load_state(broken)
    again.load_state({})
    assert not again.learned
    assert again.digest == ProductQuantiser(SHAPE, 9).digest


@pytest.mark.parametrize(("spec", "shape", "words"), [
    ("pq:9", (3, 8, 8), "not for pictures of shape"), ("pq:1", SHAPE, "2 to 41 bytes"),
    ("pq:42", SHAPE, "2 to 41 bytes"), ("pq:9,entropy", SHAPE, "no option of pq"), ("pq:file:9", SHAPE, "whole number"),
])
def test_what_it_cannot_do_is_said(spec, shape, words):
    with pytest.raises(UserError, match=words):
        codec_named(spec, shape)


def test_it_is_named_with_its_number():
    assert codec_named("pq:9", SHAPE).spec == "pq:9"
    assert codec_named("pq", (1280, 1, 1)).exemplar_bytes == 64
    assert codec_told("pq:9", SHAPE).exemplar_bytes == 9
    with pytest.raises(DataError, match="vectors of shape"):
        codec_named("pq:9", SHAPE).encode(torch.zeros(1, 41, 1, 1))


# -- in a learner ------------------------------------------------------------------------------------------------

REPLAYING = ["er", "derpp", "icarl", "csrel", "rm", "protocore"]


def taught(method: str, **flags) -> Learner:
    mine = learner(method, SHAPE, **{"codec": "pq:9", "threads": 1, "epochs": 1} | flags)
    for number, classes in enumerate(([0, 1], [2, 3])):
        labels = np.repeat(classes, 10)
        mine.learn(task_of(labels, images=features(20, seed=number).numpy()))
    return mine


@pytest.mark.parametrize("method", REPLAYING)
def test_the_codebook_is_counted_planned_and_read_back_with_the_memory(method, tmp_path):
    mine = taught(method)
    kept = mine.memory()
    told = {entry.name: (entry.bytes, entry.shared) for entry in mine.ledger().entries}
    assert told["codebook/codes"] == (CODES * 5, False)
    assert told["codebook/mean"] == (40, False)
    at = Horizon((0, 1, 2, 3), tasks=2, images=20, of_class=10,
                 sizes={store.name: store.size(list) for store in mine.method.stores()})
    plan = mine.method.planned(at, sum(len(store) for store in mine.method.stores()))
    assert {k: v for k, v in plan.items() if "codebook" in k} == {
        k: v for k, v in plan_of(kept).items() if "codebook" in k}
    mine.save(tmp_path / "one.learner")
    again, new = Learner.load(tmp_path / "one.learner"), features(20, seed=9)
    assert torch.equal(again.scores(new), mine.scores(new))
    assert again.tools.codec.digest == mine.tools.codec.digest
    for one, other in zip(again.method.stores(), mine.method.stores(), strict=True):
        assert torch.equal(one.images, other.images)
    again.learn(task_of([4, 5] * 5, images=features(10, seed=8).numpy()))
    assert all(torch.equal(again.memory()[key], kept[key]) for key in kept if "codebook" in key)  # learned once


def test_a_budget_counts_the_codebook_and_holds_at_every_learn():
    with pytest.raises(BudgetError, match="need --budget") as refused:
        taught("er", budget=900, spc=None)
    least = int(str(refused.value).split("need --budget ")[1])
    mine = taught("er", budget=least + 200, spc=None)
    assert mine.ledger().total <= least + 200
    assert mine.ledger().total > least


def test_codes_take_a_part_of_the_bytes_and_no_method_keeps_a_codebook_it_does_not_use():
    sizes = {codec: next(e.bytes for e in taught("er", codec=codec).ledger().entries if e.name == "exemplars/bytes")
             for codec in ("pixels", "pq:9")}
    assert sizes["pixels"] / sizes["pq:9"] == pytest.approx(40 / 9)
    for method in ("ncm", "finetune"):
        mine = taught(method)
        assert not any("codebook" in name for name in mine.memory())


def test_it_is_resumed_inside_a_task_with_the_codebook_of_the_first(tmp_path):
    def first_task():
        return task_of(np.repeat([0, 1], 10), images=features(20).numpy())

    whole = learner("er", SHAPE, codec="pq:9", epochs=2, threads=1)
    whole.learn(first_task())
    cut = learner("er", SHAPE, codec="pq:9", epochs=2, threads=1)

    class Stop(Exception):
        pass

    def stop(done, of, loss):
        if done == 3:
            cut.save(tmp_path / "inside")
            raise Stop

    with pytest.raises(Stop):
        cut.learn(first_task(), on_step=stop)
    again = learner("er", SHAPE, codec="pq:9", epochs=2, threads=1)
    task = first_task()
    again.restore(tmp_path / "inside", task)
    again.learn(task, start=3)
    assert all(torch.equal(again.memory()[key], value) for key, value in whole.memory().items())


def test_a_pack_carries_the_codebook_and_is_checked_with_it(tmp_path, capsys):
    mine = learner("protocore", SHAPE, codec="pq:9", threads=1, epochs=1)
    mine.partial_fit(features(20), ["one"] * 10 + ["other"] * 10)
    mine.save_pack(tmp_path / "memory.pack")
    pack = read_pack(tmp_path / "memory.pack")
    assert "codebook/codes" in pack.tensors
    again = learner("protocore", SHAPE, codec="pq:9", threads=1, epochs=1).load_pack(tmp_path / "memory.pack")
    assert torch.equal(again.method.stores()[0].images, mine.method.stores()[0].images)
    assert not all(verdict.ok for verdict in verify(tmp_path / "memory.pack", codec_told("pq:9", SHAPE)))
    assert main(["pack", "verify", str(tmp_path / "memory.pack")]) == 0
    assert "decode" in capsys.readouterr().out
    assert main(["pack", "inspect", "--json", str(tmp_path / "memory.pack")]) == 0
    lines = json.loads(capsys.readouterr().out)["parts"]
    assert next(line["bytes"] for line in lines if line["part"] == "statistics") >= CODES * 5 + 40
    other = learner("protocore", SHAPE, codec="pq:10", threads=1, epochs=1)
    with pytest.raises(DataError, match="written by the codec pq:9"):
        other.load_pack(tmp_path / "memory.pack")


def test_what_is_forgotten_leaves_word_of_the_codebook_and_all_of_it_goes_with_the_last_class():
    mine = taught("er")
    words = mine.method.forget(3)
    assert any("codebook" in text for text in words)
    for label in (2, 1, 0):
        mine.method.forget(label)
    assert not any("codebook" in name for name in mine.memory())
    assert not mine.tools.codec.learned


def test_condensing_steps_pass_through_the_codes():
    kept = []
    for steps in (0, 20):
        mine = learner("protocore", SHAPE, codec="pq:9", threads=1, epochs=1, spc=2, condense_steps=steps,
                       condense_lr=0.02)
        mine.learn(task_of(np.repeat([0, 1], 12), images=noise(np.zeros(24), shape=SHAPE)))
        kept.append(mine.memory()["coded exemplars/bytes"])
    assert kept[0].shape == kept[1].shape == (4, 9)
    assert not torch.equal(*kept)
