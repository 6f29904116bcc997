"""Small changes of the code that no other test would see."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from protocore.codecs.pixels import Pixels
from protocore.condense.distribution import View
from protocore.condense.loop import Goals, Weights, condense
from protocore.condense.matching import Distribution, Learned, Matching, Reals, Sight, match
from protocore.condense.targets import make_targets


@pytest.mark.parametrize(("lr", "better"), [(0.05, True), (500.0, False)])
def test_steps_that_make_nothing_better_leave_the_start_as_it_was(lr: float, better: bool) -> None:
    torch.manual_seed(0)
    start = torch.randn(4, 1, 4, 4)
    goal = torch.sigmoid(start + 0.5 * torch.randn_like(start)).flatten(1)  # near: a long step can only lead away
    nothing = torch.full_like(goal, float("nan"))
    codec = Pixels((1, 4, 4))
    made = condense(lambda x: x.flatten(1), codec, start, Goals(goal, nothing, nothing, torch.arange(4)),
                    weights=Weights(1, 0, 0), steps=7, lr=lr)
    assert (made.stored != codec.to_bytes(start)) is better
    assert (made.after < made.before) is better
    assert made.after <= made.before


def test_those_who_join_a_small_group_are_its_nearest_neighbours() -> None:
    """Seven samples lie together, one far off: its centre is made of it and of the two next to it."""
    angle = torch.tensor([0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 1.5])
    z = torch.stack([angle.cos(), angle.sin()], 1)
    labels = torch.zeros(8, dtype=torch.int64)
    made = make_targets(z, labels, [0], 2, torch.ones(8, dtype=torch.bool), blend=3)
    assert made.members.int().tolist() == [[1] * 7 + [0], [0] * 5 + [1] * 3]
    assert torch.allclose(made.features[1], z[5:].mean(0))


class Coarse(Pixels):
    """Only latents that are whole numbers can be stored."""

    def __init__(self) -> None:
        super().__init__((1, 4, 4))
        self.met: list[torch.Tensor] = []

    def draft(self, z: torch.Tensor) -> torch.Tensor:
        self.met.append(z.detach().clone())
        return z + (z.round() - z).detach()


def no_goals(count: int, images: torch.Tensor | None = None) -> Goals:
    nothing = torch.full((count, 16), float("nan"))
    return Goals(nothing, nothing, nothing, torch.zeros(count, dtype=torch.int64), images=images)


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)


@pytest.mark.parametrize("distribution", [False, True])
def test_latents_are_drawn_to_what_can_be_stored_where_that_is_weighed(distribution: bool) -> None:
    torch.manual_seed(0)
    start, codec, weights = torch.randn(4, 1, 4, 4), Coarse(), Weights(0, 0, 0, natural=1)
    if distribution:
        reals = Reals(torch.zeros(4, dtype=torch.int64), lambda rows: torch.rand(4, 1, 4, 4)[rows])
        learned = Learned(flat, lambda x, y: x.sum() * 0)
        match(start, Distribution(codec, no_goals(4), reals, learned, Matching("learned"), weights), steps=30, lr=0.02)
    else:
        condense(flat, codec, start, no_goals(4), weights=weights, steps=30, lr=0.02)
    first, last = ((z - z.round()).abs().mean() for z in (codec.met[0], codec.met[29]))
    assert last < 0.4 * first


def test_pictures_are_held_to_their_goals_as_they_are_stored_and_not_as_a_transform_shows_them() -> None:
    torch.manual_seed(0)
    wanted = 0.2 + 0.6 * torch.rand(3, 1, 4, 4)
    made = condense(flat, Pixels((1, 4, 4)), torch.zeros(3, 1, 4, 4), no_goals(3, wanted),
                    weights=Weights(0, 0, 0, pixels=1), steps=40, lr=0.2, perturb=lambda x: x.flip(3))
    assert made.after < 0.05 * made.before


def test_networks_that_a_distribution_is_seen_by_are_taken_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fresh and learned ones take turns, none is left out."""
    asked: list[tuple[int, bool]] = []
    real = Distribution.sight

    def sight(self: Distribution, number: int, view: View | None = None) -> Sight:
        asked.append((number, view is None))
        return real(self, number, view)

    monkeypatch.setattr(Distribution, "sight", sight)
    reals = Reals(torch.zeros(4, dtype=torch.int64), lambda rows: torch.rand(4, 1, 4, 4)[rows])
    how = Matching("both", every=2, width=8)
    match(torch.randn(4, 1, 4, 4), Distribution(Pixels((1, 4, 4)), no_goals(4), reals,
                                                Learned(flat, lambda x, y: x.sum() * 0), how), steps=6, lr=0.1)
    assert [number for number, drawn in asked if drawn] == [0, 1, 2]


def test_steps_towards_a_distribution_get_shorter_along_half_a_cosine() -> None:
    """Under a slope that is the same everywhere a step of Adam is as long as its rate."""
    codec, steps = Coarse(), 4
    slope = SimpleNamespace(codec=codec, weights=Weights(), how=Matching(every=1), sight=lambda *which: None,
                            loss=lambda z, sight: (z.sum(), z))
    match(torch.zeros(2, 1, 4, 4), slope, steps=steps, lr=0.1)
    lengths = [float((a - b).mean()) for a, b in itertools.pairwise(codec.met)]
    assert lengths == pytest.approx([0.05 * (1 + math.cos(math.pi * k / steps)) for k in range(steps)], rel=1e-3)
