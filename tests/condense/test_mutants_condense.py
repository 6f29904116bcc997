"""Small changes of the code that no other test would see."""

import pytest
import torch

from protocore.codecs.pixels import Pixels
from protocore.condense.loop import Goals, Weights, condense
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
