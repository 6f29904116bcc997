"""Every method gives its predictor as one module: what it says is what the learner says, also once it is exported."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers import SHAPE, begin, learner, task_of
from protocore.data.augment import to_float
from protocore.learn.learner import Learner
from protocore.methods import METHODS

SHORT = {
    "csrel": {"ref_epochs": 1, "selection_steps": 2, "proxy_steps": 2},
    "pbcs": {"outer_steps": 3, "inner_steps": 3},
    "onpro": {"variants": 1},
    "protocore": {"spc": 2},
}
NEW = torch.from_numpy(np.random.default_rng(7).integers(0, 256, (9, *SHAPE), dtype=np.uint8))


def taught(name: str, **flags) -> Learner:
    mine = learner(name, **SHORT.get(name, {}) | flags)
    for number, classes in enumerate(([0, 1], [2, 3])):
        mine.learn(task_of(classes * 8, seed=number))
    return mine


@pytest.mark.parametrize(("name", "flags"), [
    *((name, {}) for name in sorted(METHODS)), ("fecam", {"covariance": "shared"}), ("fecam", {"tukey": 1.0}),
    ("er", {"backbone": "convnet", "width": 4}), ("er", {"head": "cosine"}), ("csrel", {"online": True}),
], ids=str)
def test_a_predictor_is_a_module_that_can_be_exported(name, flags):
    mine = taught(name, **flags)
    expected, x = mine.scores(NEW), to_float(NEW)
    predictor = mine.method.predictor().eval()
    assert isinstance(predictor, nn.Module)
    with torch.no_grad():
        exported = torch.export.export(predictor, (x,))
        assert torch.equal(predictor(x)[:, :4], expected)
        torch.testing.assert_close(exported.module()(x)[:, :4], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["er", "icarl", "fecam", "ldc", "pass"])
def test_a_predictor_holds_all_that_it_needs(name):
    """Moved to another type, as to another device, all of it goes along: nothing is left behind in the method."""
    mine = taught(name)
    predictor = mine.method.predictor().eval()
    held = {tensor.data_ptr() for tensor in predictor.state_dict().values()}
    assert {tensor.data_ptr() for tensor in mine.net.state_dict().values()} <= held
    before = mine.scores(NEW)
    with torch.no_grad():
        for tensor in [*predictor.parameters(), *predictor.buffers()]:
            tensor.zero_()
        assert not torch.equal(predictor(to_float(NEW))[:, :4], before)


def test_before_there_is_a_mean_the_head_predicts():
    mine = learner("ldc")
    begin(mine, task_of([0, 1] * 6))
    assert mine.method.predictor() is mine.net
