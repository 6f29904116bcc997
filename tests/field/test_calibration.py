"""Temperatures, calibration errors and thresholds against slow references, on scores whose truth is known."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from field.conftest import TINY, Paint
from protocore.errors import DataError, UserError
from protocore.field.document import MOST_BEST, Calibration
from protocore.field.keeper import Keeper
from protocore.learn.calibration import TEMPERATURES, calibration_error, curve, doubt, temperature_of, threshold_for
from protocore.schema import Fields


def scored(count: int, sharp: float, seed: int = 0, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores whose probabilities are right at temperature 1 / sharp: labels are drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, classes, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial((scores).softmax(1), 1, generator=generator).flatten()
    return scores * sharp, labels


@pytest.mark.parametrize("sharp", [0.02, 0.5, 1.0, 7.0, 150.0])
def test_the_temperature_under_which_labels_were_drawn_is_found(sharp: float) -> None:
    scores, labels = scored(4000, sharp)
    found = temperature_of(curve(scores, labels))
    assert abs(math.log(found / sharp)) < 0.1
    sure, said = (scores / found).softmax(1).max(1)
    assert calibration_error(sure, said == labels) < 0.03
    if not 0.5 <= sharp <= 2:
        sure = scores.softmax(1).amax(1)
        assert calibration_error(sure, said == labels) > 0.1


def test_the_temperature_is_that_of_a_slow_search() -> None:
    scores, labels = scored(60, 3.0, seed=5)
    rows, true = scores.numpy(), labels.tolist()
    others = [max((value, k) for k, value in enumerate(row) if k != label)[1]
              for row, label in zip(rows, true, strict=True)]
    unclear = min(range(60), key=lambda k: abs(rows[k, true[k]] - rows[k, others[k]]))
    counted = [*enumerate(true), (unclear, true[unclear]), (unclear, others[unclear])]

    def loss(temperature: float) -> float:
        total = 0.0
        for row, label in counted:
            at = rows[row] / temperature
            total -= at[label] - at.max() - math.log(sum(math.exp(v - at.max()) for v in at))
        return total

    best = min(np.exp(np.linspace(math.log(0.3), math.log(30), 300)), key=loss)
    found = temperature_of(curve(scores, labels) + doubt(scores, labels))
    assert loss(found) < loss(best) * 1.002
    assert abs(math.log(found / best)) < 0.1


def test_a_curve_that_falls_to_one_of_its_ends_is_least_there() -> None:
    """As where every picture is taken for something else: no doubt is too large."""
    falling = torch.arange(len(TEMPERATURES)).double().flip(0)
    assert temperature_of(falling) == TEMPERATURES[-1]
    assert temperature_of(falling.flip(0)) == TEMPERATURES[0]
    scores = torch.tensor([[9.0, 0.0], [0.0, 9.0]] * 20)
    assert temperature_of(curve(scores, torch.tensor([1, 0] * 20))) == TEMPERATURES[-1]


def test_few_pictures_that_are_all_right_do_not_make_it_certain() -> None:
    """The rule of succession: of n pictures, all right, the next is right with (n + 1) in (n + 2)."""
    for count in (1, 4, 40):
        scores = torch.zeros(count, 3)
        scores[:, 0] = 5.0
        labels = torch.zeros(count, dtype=torch.int64)
        found = temperature_of(curve(scores, labels) + doubt(scores, labels))
        sure = float((scores / found).softmax(1)[0, 0])
        assert sure == pytest.approx((count + 1) / (count + 2), abs=0.01)


def test_one_unclear_picture_does_not_make_the_clear_ones_unsure() -> None:
    """Doubt is about what is unclear: were it spread over all, those that are right by far would be called unsure."""
    margins = torch.linspace(0.5, 40, 40, dtype=torch.float64)
    scores = torch.stack([margins, 0 * margins, -margins], 1)
    labels = torch.zeros(40, dtype=torch.int64)
    found = temperature_of(curve(scores, labels) + doubt(scores, labels))
    sure = (scores / found).softmax(1)[:, 0]
    assert sure.mean() > 0.95
    assert 0.5 < sure[0] < 0.9


def test_the_calibration_error_is_the_mean_gap_in_equal_bins() -> None:
    chance = np.random.default_rng(1)
    sure, right = chance.random(500), chance.random(500) < 0.6
    slow = 0.0
    for k in range(15):
        inside = (sure > k / 15) & (sure <= (k + 1) / 15)
        if inside.any():
            slow += inside.sum() / 500 * abs(sure[inside].mean() - right[inside].mean())
    assert calibration_error(torch.tensor(sure), torch.tensor(right)) == pytest.approx(slow, abs=1e-9)
    assert calibration_error(torch.tensor([1.0, 1.0]), torch.tensor([True, False])) == pytest.approx(0.5)
    assert calibration_error(torch.tensor([0.0]), torch.tensor([False])) == 0


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.37])
def test_false_alarms_are_no_more_than_was_promised(rate: float) -> None:
    """Of a next picture of a known class, whatever the distribution: in the mean over many sets of held-out ones."""
    chance = np.random.default_rng(2)
    alarms = []
    for _ in range(3000):
        held, fresh = chance.gamma(2.0, size=60), chance.gamma(2.0, size=20)
        alarms.append((fresh < threshold_for(held.tolist(), rate)).mean())
    allowed = int(rate * 61) / 61
    assert np.mean(alarms) == pytest.approx(allowed, abs=0.006)
    assert allowed <= rate


def test_a_rate_that_so_few_pictures_cannot_promise_is_refused() -> None:
    assert threshold_for([0.5] * 19, 0.05) == 0.5
    with pytest.raises(UserError, match=r"--unknown 0\.05.*19 held-out.* there were 18; give at least 0\.053, or"):
        threshold_for([0.5] * 18, 0.05)
    with pytest.raises(UserError, match=r"there were 40; give at least 0\.025, or"):
        threshold_for([0.5] * 40, 0.01)
    with pytest.raises(UserError, match="there were 0; learn more pictures"):
        threshold_for([], 0.5)
    for rate in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="--unknown"):
            threshold_for([0.5] * 50, rate)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.03, 0.07, 0.1, 1 / 3, 0.5, 0.7, 0.99])
def test_the_number_of_pictures_that_a_rate_needs_is_the_least_that_will_do(rate: float) -> None:
    with pytest.raises(UserError, match="held-out") as met:
        threshold_for([], rate)
    needed = int(re.findall(r"needs ([\d,]+) held", str(met.value))[0].replace(",", ""))
    assert threshold_for([0.5] * needed, rate) == 0.5
    with pytest.raises(UserError, match=f"needs {needed:,} held-out pictures, and there were {needed - 1:,}; "):
        threshold_for([0.5] * (needed - 1), rate)


def test_what_is_kept_of_held_out_pictures_adds_up_and_stays_small() -> None:
    scores, labels = scored(300, 3.0)
    whole = Calibration().plus(scores, labels)
    assert whole.pictures == 300
    assert len(whole.best) == MOST_BEST
    halves = Calibration().plus(scores[:150], labels[:150]).plus(scores[150:], labels[150:])
    assert halves.pictures == 225  # what came earlier counts half
    assert len(halves.losses) == len(TEMPERATURES)
    assert abs(math.log(halves.temperature / whole.temperature)) < 0.2
    twice = whole.plus(scores[:2], labels[:2])
    assert len(twice.best) == MOST_BEST
    assert abs(math.log(twice.temperature / whole.temperature)) < 0.1
    assert Calibration().temperature == 1.0


def test_doubt_counts_once_however_often_something_is_learned() -> None:
    """Eight classes that came one by one, three held-out pictures each, all right: not a doubt for each of them."""
    scores = torch.zeros(3, 8)
    scores[:, 0] = 5.0
    labels, one_by_one, never = torch.zeros(3, dtype=torch.int64), Calibration(), Calibration()
    for _ in range(8):
        one_by_one = one_by_one.plus(scores, labels)
    for other in (one_by_one.joined(never), never.joined(one_by_one)):
        assert other.temperature == one_by_one.temperature
    pictures = 3 * (2 - 2**-7)  # the earlier ones count half each time
    assert one_by_one.pictures == pytest.approx(pictures)
    sure = (scores[0].double() / one_by_one.temperature).softmax(0)[0]
    assert sure == pytest.approx((pictures + 1) / (pictures + 2), abs=0.02)
    unclear = torch.tensor([[1.0, 0.9]])
    assert list(one_by_one.plus(unclear, torch.tensor([0])).plus(scores, labels).doubt) == pytest.approx(
        doubt(unclear, torch.tensor([0])).tolist(), rel=1e-5)


def test_probabilities_of_a_learner_in_the_field_are_those_of_its_temperature(tmp_path, paint: Paint) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", **TINY)
    learned = keeper.learn([paint("photos", "red", "blue", "green", each=24)])
    assert learned.held_out == 9  # an eighth of 24, of each class
    learner = keeper.learner
    assert learner.temperature == keeper.document.calibration.temperature != 1.0
    pictures = sorted(paint("held", "red", "blue", each=6).rglob("*.png"))
    wanted = (learner.scores(pictures).double() / learner.temperature).softmax(1).numpy()
    assert np.allclose(learner.predict_proba(pictures), wanted)
    strange = paint("strange", "white", each=6)
    tested = keeper.test([tmp_path / "held", strange], unknown=0.2)
    assert tested.strangers == {"white": 6}
    assert tested.false_alarms is not None
    assert tested.caught is not None
    assert [one.unknown for one in keeper.predict([strange], unknown=0.2)].count(True) == round(6 * tested.caught)
    assert not any(one.unknown for one in keeper.predict([strange]))
    with pytest.raises(UserError, match=r"--unknown 0\.01"):
        keeper.predict([strange], unknown=0.01)


def test_nearness_is_kept_where_the_method_tells_and_a_file_with_scores_goes_on_with_scores() -> None:
    scores, labels, near = torch.tensor([[9.0, 1.0], [2.0, 8.0]]), torch.tensor([0, 1]), torch.tensor([0.7, 0.6])
    fresh = Calibration().plus(scores, labels, near)
    assert (fresh.measure, list(fresh.best)) == ("nearness", pytest.approx([0.7, 0.6]))
    assert list(fresh.plus(scores, labels, near).best) == pytest.approx([0.7, 0.6, 0.7, 0.6])
    older = Calibration().plus(scores, labels)
    assert (older.measure, list(older.best)) == ("score", [9.0, 8.0])
    assert older.plus(scores, labels, near).measure == "score"
    assert list(older.plus(scores, labels, near).best) == [9.0, 8.0, 9.0, 8.0]
    few = fresh.joined(Calibration())
    assert (few.measure, len(few.best)) == ("nearness", 2)
    more = fresh.joined(older.plus(scores, labels))
    assert (more.measure, list(more.best)) == ("score", [9.0, 8.0, 9.0, 8.0]), "two scales are never mixed"


def test_a_file_of_before_is_by_scores_and_one_of_now_does_not_pass_nearness_for_scores() -> None:
    def read(said: dict[str, Any]) -> Calibration:
        return Calibration.read(Fields(json.loads(json.dumps(said)), "mine.learner", ""))

    for measure in ("score", "nearness"):
        kept = Calibration(2.0, [0.5] * 49, [1.0, 2.0], [0.25] * 49, measure)
        said = kept.to_json()
        assert read(said) == kept
        assert said["best"] == ([1.0, 2.0] if measure == "score" else []), "what older versions read"
    del said["near"]
    assert (read(said).measure, read(said).best) == ("score", [])
    with pytest.raises(DataError, match=r"near is .* where nothing beside scores belongs"):
        read(said | {"best": [1.0], "near": [0.5]})
