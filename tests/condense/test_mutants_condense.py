"""Small changes of the code that no other test would see."""

import pytest
import torch

from protocore.codecs.pixels import Pixels
from protocore.condense.loop import Goals, Weights, condense


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
