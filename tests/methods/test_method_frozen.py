"""ncm, slda and ranpac: statistics against slow references, the same memory in any order, budgets that are kept to."""

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS

from helpers import learner as small_learner
from helpers import noise, task_of
from protocore.data.augment import to_float
from protocore.directions import directions, orthonormal
from protocore.errors import BudgetError, DataError, UserError
from protocore.learn.learner import Learner
from protocore.memory.plan import Horizon, file_size, plan_of
from protocore.memory.prototypes import PrototypeStore
from protocore.methods.parts.moments import (
    Moments,
    discriminant,
    nearest_in_angle,
    oracle_share,
    ridge,
    shrunk_to_identity,
)
from protocore.methods.parts.projection import Projection
from protocore.methods.ranpac import SHARES
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (12, 1, 1)
EXACT = {"prototype_dtype": "float32"}
NAMES = ("ncm", "slda", "ranpac")


class Pixels(torch.nn.Module):
    """Pixels are the features: what a frozen network in front has made of pictures."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


def learner(method: str, shape: tuple[int, int, int] = SHAPE, **flags) -> Learner:
    return Learner.of(configure({"method": method, "benchmark": "digits", "threads": 1} | flags), shape,
                      backbone=Pixels())


def exact(method: str, **flags) -> Learner:
    return learner(method, **EXACT | ({} if method == "ncm" else {"covariance_dtype": "float32"}) | flags)


def pictures(labels, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    """Classes whose numbers go together in some directions, more in some than in others."""
    chance = np.random.default_rng(seed)
    dim = int(np.prod(shape))
    centres = np.random.default_rng(99).uniform(60, 190, (16, dim))
    mix = np.random.default_rng(98).normal(0, 8, (dim, dim)) * np.linspace(0.2, 1.5, dim)
    x = centres[np.asarray(labels)] + chance.normal(size=(len(labels), dim)) @ mix
    return x.clip(0, 255).round().astype(np.uint8).reshape(-1, *shape)


def parts(labels: np.ndarray, images: np.ndarray, cuts: list[int]):
    for rows in np.split(np.arange(len(labels)), cuts):
        yield task_of(labels[rows], images=images[rows])


LABELS = np.random.default_rng(5).permutation(np.repeat(np.arange(4), 15))


def unit(images: np.ndarray) -> np.ndarray:
    z = images.reshape(len(images), -1) / 255.0
    return z / np.linalg.norm(z, axis=1, keepdims=True)


# -- statistics --------------------------------------------------------------------------------------------------


def streamed(z: np.ndarray, labels: np.ndarray) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Sample by sample, as the paper has it: μ ← μ + (z - μ)/(n + 1), and the scatter with n/(n + 1) of the class."""
    mean, count, scatter = {}, {}, np.zeros((z.shape[1], z.shape[1]))
    for x, y in zip(z, labels.tolist(), strict=True):
        n = count.get(y, 0)
        if n:
            scatter += n / (n + 1) * np.outer(x - mean[y], x - mean[y])
        mean[y] = x.copy() if not n else mean[y] + (x - mean[y]) / (n + 1)
        count[y] = n + 1
    return mean, scatter


def test_moments_are_those_of_one_sample_after_the_other():
    images = pictures(LABELS)
    mean, scatter = streamed(unit(images), LABELS)
    z, labels = torch.from_numpy(unit(images)), torch.from_numpy(LABELS)
    whole = Moments.of(z, labels)
    np.testing.assert_allclose(whole.scatter.numpy(), scatter, atol=1e-12)
    np.testing.assert_allclose(whole.means.numpy(), np.stack([mean[c] for c in range(4)]), atol=1e-12)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    pieces = [Moments.of(z[rows], labels[rows]) for rows in order.split(7)]
    joined = pieces[0]
    for piece in pieces[1:]:
        joined = joined + piece
    for a, b in ((joined.means, whole.means), (joined.scatter, whole.scatter), (joined.counts, whole.counts)):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(whole.gram(), z.T @ z, atol=1e-11, rtol=1e-11)


def test_nothing_added_is_nothing_changed_and_a_lone_picture_scatters_nothing():
    z, labels = torch.rand(5, 3, dtype=torch.float64), torch.tensor([2, 0, 2, 0, 7])
    some, none = Moments.of(z, labels), Moments.of(z[:0], labels[:0])
    for a, b in ((some + none, some), (none + some, some)):
        assert torch.equal(a.classes, torch.tensor([0, 2, 7]))
        torch.testing.assert_close(a.means, b.means)
        torch.testing.assert_close(a.scatter, b.scatter)
    assert not Moments.of(z[4:], labels[4:]).scatter.any()


def test_the_share_of_the_identity_is_scikit_learn_s():
    x = np.random.default_rng(0).normal(size=(40, 6)) @ np.random.default_rng(1).normal(size=(6, 6))
    found = OAS(assume_centered=False).fit(x)
    cov = torch.from_numpy(np.cov(x, rowvar=False, bias=True))
    share = oracle_share(cov, 40)
    assert share == pytest.approx(found.shrinkage_, rel=1e-9)
    assert 0 < share < 0.5
    np.testing.assert_allclose(shrunk_to_identity(cov, share).numpy(), found.covariance_, atol=1e-12)
    assert oracle_share(torch.eye(4), 9) == 1.0
    assert torch.equal(shrunk_to_identity(torch.zeros(3, 3), 0.1), torch.eye(3))


def test_a_discriminant_says_the_log_of_gaussian_densities_up_to_what_classes_share():
    moments = Moments.of(torch.from_numpy(unit(pictures(LABELS))), torch.from_numpy(LABELS))
    cov = shrunk_to_identity(moments.scatter / 60, 0.1)
    weight, bias = discriminant(moments.means, cov)
    z = torch.from_numpy(unit(pictures(LABELS, seed=3)))
    by_hand = torch.stack([torch.distributions.MultivariateNormal(m, cov).log_prob(z) for m in moments.means], 1)
    apart = (z @ weight.T + bias) - by_hand
    torch.testing.assert_close(apart, apart[:, :1].expand_as(apart), atol=1e-7, rtol=1e-7)


def test_the_nearest_in_angle_is_seen_from_the_centre_of_the_means():
    means, z = torch.rand(3, 5, dtype=torch.float64), torch.rand(7, 5, dtype=torch.float64)
    weight, bias = nearest_in_angle(means)
    away = z - means.mean(0)
    cosines = torch.nn.functional.cosine_similarity(away[:, None], (means - means.mean(0))[None], dim=2)
    torch.testing.assert_close(z @ weight.T + bias, cosines * away.norm(dim=1, keepdim=True))
    lone = nearest_in_angle(means[:1])
    assert not lone[0].any()
    assert not lone[1].any()


@pytest.mark.parametrize("share", [1e-3, 0.1, 10.0])
def test_ridge_is_least_squares_with_a_penalty_on_all_pictures(share):
    z, labels = torch.from_numpy(unit(pictures(LABELS))), torch.from_numpy(LABELS)
    wanted = torch.nn.functional.one_hot(labels).double()
    penalty = (share * float(z.square().sum(0).mean())) ** 0.5
    rows = torch.cat([z, penalty * torch.eye(z.shape[1], dtype=torch.float64)])
    slow = torch.linalg.lstsq(rows, torch.cat([wanted, torch.zeros(z.shape[1], 4, dtype=torch.float64)])).solution.T
    torch.testing.assert_close(ridge(Moments.of(z, labels), share), slow, atol=1e-8, rtol=1e-7)


def test_ridge_does_without_a_matrix_that_half_precision_has_left_indefinite():
    moments = Moments.of(torch.rand(6, 4, dtype=torch.float64), torch.tensor([0, 1] * 3))
    broken = Moments(moments.classes, moments.counts, moments.means,
                     moments.scatter - 3 * torch.eye(4, dtype=torch.float64))
    gram = broken.gram()
    assert float(torch.linalg.eigvalsh(gram)[0]) < 0
    found = ridge(broken, 1e-3)
    shifted = gram + 1e-3 * gram.diagonal().mean() * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(found @ shifted, broken.means * broken.counts[:, None])


# -- directions --------------------------------------------------------------------------------------------------


def test_directions_are_nested_and_depend_on_the_seed_alone():
    torch.manual_seed(3)
    many, state = directions(40, 24, 7), torch.get_rng_state()
    assert torch.equal(directions(11, 24, 7), many[:11])
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(directions(11, 24, 8), many[:11])
    assert many[0, :3].tolist() == pytest.approx([-0.5847, -0.6017, 1.0898], abs=2e-4)  # the same on every machine
    wide = directions(200, 200, 0)
    assert abs(float(wide.mean())) < 0.02
    assert float(wide.std()) == pytest.approx(1, abs=0.02)


def test_orthonormal_rows_are_gram_and_schmidt_s():
    vectors = directions(5, 9, 1)
    slow: list[np.ndarray] = []
    for row in vectors.numpy():
        rest = row - sum((row @ q * q for q in slow), np.zeros(9))
        slow.append(rest / np.linalg.norm(rest))
    np.testing.assert_allclose(orthonormal(vectors).numpy(), np.stack(slow), atol=1e-12)
    np.testing.assert_allclose(orthonormal(vectors[:3]).numpy(), np.stack(slow[:3]), atol=1e-12)


def test_what_is_kept_of_features():
    z = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    torch.testing.assert_close(Projection(1.0, None)(z), torch.tensor([[0.6, -0.8], [0.0, 0.0]]))
    torch.testing.assert_close(Projection(2.0, None)(z)[0], torch.tensor([9.0, -16.0]) / 337**0.5)
    along = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    torch.testing.assert_close(Projection(1.0, along)(z)[0], torch.tensor([0.6, -0.8, -0.2]))
    torch.testing.assert_close(Projection(1.0, along, rectified=True)(z)[0], torch.tensor([0.6, 0.0, 0.0]))


# -- the methods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_in_one_task_or_in_many_it_is_the_same_memory_and_the_same_scores(name):
    images = pictures(LABELS)
    once, often = exact(name), exact(name)
    for task in parts(LABELS, images, []):
        once.learn(task)
    for task in parts(LABELS, images, [7, 20, 33, 34, 58]):
        often.learn(task)
    for key, value in once.memory().items():
        if key != "statistics/errors":
            torch.testing.assert_close(often.memory()[key], value, atol=1e-5, rtol=1e-4)
    if name != "ranpac":  # whose penalty is chosen by what was held out of each
        new = torch.from_numpy(pictures(LABELS, seed=1))
        torch.testing.assert_close(often.scores(new), once.scores(new), atol=1e-2, rtol=1e-3)


def test_slda_is_the_slow_reference():
    images, new = pictures(LABELS), pictures(LABELS, seed=1)
    mine = exact("slda", shrinkage=0.05)
    for task in parts(LABELS, images, [25, 41]):
        mine.learn(task)
    mean, scatter = streamed(unit(images), LABELS)
    cov = scatter / len(LABELS)
    cov = 0.95 * cov + 0.05 * np.trace(cov) / 12 * np.eye(12)
    inverse = np.linalg.inv(cov)
    scores = np.stack([unit(new) @ inverse @ m - 0.5 * m @ inverse @ m for m in (mean[c] for c in range(4))], 1)
    found = mine.scores(torch.from_numpy(new)).double().numpy()
    np.testing.assert_allclose(found - found[:, :1], scores - scores[:, :1], rtol=1e-3, atol=0.05)
    assert (found.argmax(1) == scores.argmax(1)).all()
    assert (found.argmax(1) == LABELS).mean() > 0.9


def test_ranpac_is_ridge_on_random_units_of_all_pictures():
    images, new = pictures(LABELS), pictures(LABELS, seed=1)
    mine = exact("ranpac", project="30", ridge=0.1)
    for task in parts(LABELS, images, [25, 41]):
        mine.learn(task)
    drawn = directions(30, 12, 0).numpy()
    h, x = (np.maximum(unit(part) @ drawn.T, 0) for part in (images, new))
    gram = h.T @ h
    gram += 0.1 * gram.diagonal().mean() * np.eye(30)
    slow = x @ np.linalg.solve(gram, h.T @ np.eye(4)[LABELS])
    np.testing.assert_allclose(mine.scores(torch.from_numpy(new)).numpy(), slow, atol=2e-3)


def test_ranpac_takes_the_penalty_that_errs_least_on_pictures_it_was_not_fitted_to():
    labels, images = np.repeat([0, 1], 15), noise(np.zeros(30), shape=SHAPE)  # there is nothing to fit
    images[15:] //= 2
    images[15:, 6:] += 40
    mine = exact("ranpac", project="30")
    mine.learn(task_of(labels, images=images))
    drawn = torch.from_numpy(unit(images)) @ directions(30, 12, 0).T
    h, held = drawn.relu(), torch.arange(30) % 5 == 4
    fitted = Moments.of(h[~held], torch.from_numpy(labels)[~held])
    slow = [float((h[held] @ ridge(fitted, share).T - torch.eye(2)[labels[held.numpy()]]).square().sum())
            for share in SHARES]
    errors = mine.memory()["statistics/errors"]
    assert errors.tolist() == pytest.approx(slow, rel=1e-3)
    weight, _ = mine.method.classifier()
    torch.testing.assert_close(weight, ridge(mine.method.moments(), SHARES[int(np.argmin(slow))]))
    assert 0 < int(np.argmin(slow)) < len(SHARES) - 1  # or the choice would not be seen
    mine.learn(task_of([2] * 4, images=pictures([2] * 4)))  # too few to hold one out
    assert torch.equal(mine.memory()["statistics/errors"], errors)
    assert "statistics/errors" not in exact("ranpac", ridge=0.1).memory()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_stored_of_old_classes_is_not_touched(name):
    mine = learner(name)
    mine.learn(task_of([0, 1] * 8, images=pictures([0, 1] * 8)))
    before = mine.memory()["prototypes/features"]
    trained: list[int] = []
    mine.learn(task_of([2, 3] * 8, images=pictures([2, 3] * 8)), on_step=lambda *a: trained.append(1))
    assert torch.equal(mine.memory()["prototypes/features"][:2], before)
    assert not trained


@pytest.mark.parametrize("dtype", ["int4", "int8", "float16", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_a_learner_read_back_says_the_same(name, dtype, tmp_path):
    flags = {"budget": 900, "prototype_dtype": dtype}
    mine, new = learner(name, **flags), torch.from_numpy(pictures(LABELS, seed=1))
    for task in parts(LABELS, pictures(LABELS), [31]):
        mine.learn(task)
    mine.save(tmp_path / "one.learner")
    again = Learner.load(tmp_path / "one.learner", backbone=Pixels())
    assert again.method.numbers == mine.method.numbers
    assert torch.equal(again.scores(new), mine.scores(new))
    for other in (mine, again):
        other.learn(task_of([5] * 6, images=pictures([5] * 6)))
    assert all(torch.equal(again.memory()[key], value) for key, value in mine.memory().items())


# -- bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_numbers_follow_the_budget_and_what_is_left_is_what_fewer_would_have_given(name, dtype):
    budget, labels = 1000 if name == "ncm" else 1500, np.repeat(range(10), 6)
    images = pictures(labels, shape=(96, 1, 1))
    mine = learner(name, (96, 1, 1), budget=budget, prototype_dtype=dtype)
    widths = []
    for task in parts(labels, images, [12, 24, 36, 48]):
        planned = mine.method.bytes_at(Horizon(tuple(sorted({*mine.method.seen, *task.classes}))), 0)
        mine.learn(task)
        widths.append(mine.method.numbers)
        assert planned == mine.ledger().total <= budget
    more = mine.method.plan_of(widths[-1] + mine.method.means.a_byte, Horizon(tuple(range(10))))
    assert widths == sorted(widths, reverse=True)
    if (name, dtype) == ("ncm", "int4"):
        assert widths[-1] == 96  # there is room for all
    else:
        assert widths[0] > widths[-1] > 8
        assert file_size(more) > budget
    fixed = learner(name, (96, 1, 1), project=str(widths[-1]), prototype_dtype=dtype)
    for task in parts(labels, images, [12, 24, 36, 48]):
        fixed.learn(task)
    if widths[-1] < 96:
        a, b = (one.method.means.get(list(range(10))) for one in (mine, fixed))
        assert float((a - b).abs().max()) <= float(b.abs().max()) / (7 if dtype == "int4" else 60)
        for one, other in zip(mine.method.others, fixed.method.others, strict=True):
            torch.testing.assert_close(one.get(0), other.get(0), atol=3e-3 * float(other.get(0).diagonal().mean()),
                                       rtol=2e-2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("widths", [(5, 8), (8, 5)])
def test_two_memories_of_unequal_width_become_one_of_the_narrower(name, widths):
    first, second = [0, 1] * 8, [2, 3] * 8
    mine, other = (exact(name, project=str(width)) for width in widths)
    mine.learn(task_of(first, images=pictures(first)))
    other.learn(task_of(first, images=pictures(second, seed=1)))  # numbers of its own
    mine.method.seen = [0, 1, 2, 3]
    mine.method.absorb(other.method, {0: 2, 1: 3})
    both = exact(name, project="5")
    both.learn(task_of(first, images=pictures(first)))
    both.learn(task_of(second, images=pictures(second, seed=1)))
    found, wanted = mine.memory(), both.memory()
    assert found.keys() == wanted.keys()
    for key in found.keys() - {"statistics/errors"}:  # each has chosen its penalty on its own pictures
        torch.testing.assert_close(found[key], wanted[key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_two_memories_become_one_within_the_budget_of_one(name):
    """Of more classes fewer numbers fit."""
    labels = [0, 1] * 8
    shape, budget = (96, 1, 1), 600 if name == "ncm" else 3000
    mine, other, both = (learner(name, shape, budget=budget) for _ in range(3))
    mine.learn(task_of(labels, images=pictures(labels, shape=shape)))
    more = [2, 3] * 8
    other.learn(task_of(labels, images=pictures(more, seed=1, shape=shape)))
    before = mine.method.numbers
    mine.method.seen = [0, 1, 2, 3]
    mine.method.absorb(other.method, {0: 2, 1: 3})
    both.learn(task_of(labels, images=pictures(labels, shape=shape)))
    both.learn(task_of(more, images=pictures(more, seed=1, shape=shape)))
    assert mine.method.numbers == both.method.numbers < before
    assert mine.ledger().total == both.ledger().total <= budget


def test_two_of_ranpac_choose_the_penalty_by_what_both_have_held_out():
    mine, other = (exact("ranpac", project="5") for _ in range(2))
    mine.learn(task_of([0, 1] * 15, images=pictures([0, 1] * 15)))
    other.learn(task_of([0, 1] * 15, images=pictures([2, 3] * 15, seed=1)))
    errors = [one.memory()["statistics/errors"].clone() for one in (mine, other)]
    assert all(bool(one.any()) for one in errors)
    mine.method.seen = [0, 1, 2, 3]
    mine.method.absorb(other.method, {0: 2, 1: 3})
    torch.testing.assert_close(mine.memory()["statistics/errors"], errors[0] + errors[1])


@pytest.mark.parametrize("name", NAMES)
def test_too_small_a_budget_is_refused_before_anything_is_learned(name):
    with pytest.raises(BudgetError, match="--budget 200 bytes cannot hold 2 classes") as refused:
        learner(name, budget=200).learn(task_of([0, 1] * 8, images=pictures([0, 1] * 8)))
    least = int(str(refused.value).split("need --budget ")[1])
    mine = learner(name, budget=least)
    mine.learn(task_of([0, 1] * 8, images=pictures([0, 1] * 8)))
    assert mine.ledger().total == least
    assert mine.method.numbers == 8
    with pytest.raises(BudgetError, match="cannot hold 3 classes"):
        mine.learn(task_of([2] * 8, images=pictures([2] * 8)))


@pytest.mark.parametrize(("project", "numbers", "rotated"), [("auto", 12, False), ("full", 12, False), ("5", 5, True)])
def test_without_a_budget_nothing_is_left_out_unless_it_is_said(project, numbers, rotated):
    mine = learner("ncm", project=project)
    mine.learn(task_of([0, 1] * 8, images=pictures([0, 1] * 8)))
    assert mine.memory()["prototypes/features"].shape == (2, numbers)
    assert (mine.method.projection.directions is not None) == rotated


@pytest.mark.parametrize("project", ["0", "13", "-1", "²", "half", "", "9" * 30])
def test_numbers_that_make_no_sense_are_refused(project):
    with pytest.raises(UserError, match=r"--project .*from 1 to 12"):
        learner("slda", project=project)


def test_a_memory_of_another_width_is_refused():
    mine = learner("ncm", project="5")
    mine.learn(task_of([0, 1] * 8, images=pictures([0, 1] * 8)))
    with pytest.raises(DataError, match=r"prototypes are torch\.int8 of shape"):
        learner("ncm", project="6").method.load_state(mine.memory())
    with pytest.raises(DataError, match="expected up to 12 numbers"):
        learner("ncm", budget=900).method.load_state(mine.memory() | {"prototypes/features": torch.zeros(2, 13)})


@pytest.mark.parametrize("dim", [1, 6, 7])
def test_four_bits_hold_what_int8_holds_in_half_the_bytes(dim):
    store = PrototypeStore(dim, "int4")
    vectors = torch.randn(3, dim, generator=torch.Generator().manual_seed(dim))
    store.set([0, 1, 5], vectors)
    kept = store.tensors()
    assert kept["prototypes/features"].shape == (3, (dim + 1) // 2)
    assert store.plan(Horizon((0, 1, 5))) == plan_of(kept)
    assert bool(((store.get([0, 1, 5]) - vectors).abs() <= vectors.abs().amax(1, keepdim=True) / 14 * 1.01).all())
    again = PrototypeStore(dim, "int4")
    again.load(kept)
    assert torch.equal(again.get([0, 1, 5]), store.get([0, 1, 5]))
    assert all(torch.equal(again.tensors()[key], value) for key, value in kept.items())


# -- end to end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "least"), [
    ({"method": "ncm"}, 84), ({"method": "slda"}, 90), ({"method": "ranpac", "project": "200"}, 90),
    ({"method": "slda", "online": True, "online_window": 70}, 90), ({"method": "slda", "blurry": 30}, 90),
    ({"method": "ncm", "budget": 600}, 70), ({"method": "slda", "budget": 2000}, 80),
])
def test_digits_of_a_network_that_was_never_trained(flags, least, tmp_path):
    result = run(configure({"backbone": "mlp", "width": 128, "threads": 1, "images_per_class": 60} | flags), tmp_path)
    assert least < result.class_incremental.A_T
    assert result.steps == 0
    assert result.bytes_kept <= flags.get("budget", 10**6)
    assert (tmp_path / "memory.safetensors").stat().st_size == result.bytes_kept


def test_nothing_learned_yet_the_head_answers_and_the_seed_turns_the_directions():
    mine = learner("slda", project="4")
    assert mine.method.predictor() is mine.net
    kept = []
    for seed in (0, 1):
        mine = learner("slda", project="4", seed=seed)
        mine.learn(task_of([0, 1] * 8, images=pictures([0, 1] * 8)))
        kept.append(mine.memory()["prototypes/features"])
    assert not torch.equal(*kept)


def test_scores_are_of_float32_features_also_under_autocast():
    mine = small_learner("slda")
    mine.learn(task_of([0, 1] * 8, images=None))
    x = to_float(torch.randint(0, 256, (4, 1, 4, 4), dtype=torch.uint8))
    predictor = mine.method.predictor()
    z = predictor.features(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(predictor.logits(z), predictor.logits(z).float())
        assert predictor.projection(z).dtype == torch.float32
