"""The fast network: its stem, its start, its sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.backbones import build_network
from protocore.backbones.fastnet import FastNet, whitening
from protocore.learn.learner import Learner
from protocore.runs.configure import configure


def pictures(shape: tuple[int, int, int], n: int = 60) -> Tensor:
    """Smooth noise: neighbouring pixels are alike, as in pictures."""
    noise = torch.rand(n, *shape, generator=torch.Generator().manual_seed(1))
    return F.avg_pool2d(F.pad(noise, (1, 1, 1, 1), mode="reflect"), 3, 1)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)], ids=str)
def test_the_stem_of_small_pictures_whitens_their_patches(shape):
    net = FastNet(shape)
    x = (pictures(shape) - 0.5) / 0.1
    net.prepare(lambda: x)
    patches = F.unfold(x, 2).mT.flatten(0, 1)
    out = (patches @ net.stem.weight.flatten(1).T)[:, : net.stem.out_channels // 2]
    second = (out.T @ out / len(out)).double()
    assert torch.allclose(second, torch.eye(len(second), dtype=torch.float64), atol=0.05)
    assert torch.equal(net.stem.weight[: len(second)], -net.stem.weight[len(second) :])


def test_of_larger_patches_the_directions_of_most_variance():
    stem = nn.Conv2d(3, 24, 4, 2)
    x = pictures((3, 64, 64), 20)
    patches = F.unfold(x, 4, stride=2).mT.flatten(0, 1).double()
    values = torch.linalg.eigvalsh(patches.T @ patches / len(patches)).flip(0)
    out = patches @ whitening(x, stem).flatten(1)[:12].T.double()
    # A direction of variance v comes out with v / (v + 0.0005), the largest first.
    assert torch.allclose(out.square().mean(0), (values / (values + 5e-4))[:12], rtol=1e-3)


def test_signs_of_the_filters_do_not_depend_on_the_solver(monkeypatch):
    stem, x = nn.Conv2d(3, 24, 2), pictures((3, 32, 32))
    first = whitening(x, stem)
    solve = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda m: (solve(m)[0], -solve(m)[1]))
    assert torch.equal(whitening(x, stem), first)


def test_convolutions_start_as_the_identity_and_the_stem_stays():
    torch.manual_seed(0)
    net = FastNet((3, 32, 32), width=32)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)][1:]
    assert len(convolutions) == 6
    for conv in convolutions:
        inputs = conv.in_channels
        x = torch.randn(1, inputs, 5, 5, generator=torch.Generator().manual_seed(2))
        assert torch.equal(conv(x)[:, :inputs], x[:, : conv.out_channels])
    assert not net.stem.weight.requires_grad
    assert net.stem.bias is not None
    assert net.stem.bias.requires_grad


@pytest.mark.parametrize("shape", [(3, 48, 20), (3, 96, 128), (1, 4, 4), (3, 30, 100)], ids=str)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_pictures_that_are_not_square(shape, norm):
    net = build_network("fastnet", shape, width=8, norm=norm)
    net.grow(3)
    assert net(torch.rand(2, *shape)).shape == (2, 3)
    assert max(net.layers(torch.rand(2, *shape))[-2].shape[2:]) <= 4


def learner(**flags) -> Learner:
    return Learner.of(configure({"method": "finetune", "benchmark": "digits", "backbone": "fastnet", "width": 8,
                                 "threads": 1, "steps": 3, **flags}), (1, 8, 8))


def test_a_learner_sets_the_stem_from_the_first_task_and_never_again(tmp_path):
    mine, images = learner(), (pictures((1, 8, 8), 40) * 255).byte()
    mine.partial_fit(images[:20], [0, 1] * 10)
    stem = mine.net.backbone.stem.weight.clone()
    again = FastNet((1, 8, 8), width=8)
    again.prepare(lambda: images[:20].float() / 255)
    assert torch.allclose(stem, again.stem.weight, atol=1e-5)
    mine.save(tmp_path / "a.learner")
    mine.partial_fit(255 - images[20:], [2, 3] * 10)
    assert torch.equal(mine.net.backbone.stem.weight, stem)
    loaded = Learner.load(tmp_path / "a.learner")
    assert torch.equal(loaded.net.backbone.stem.weight, stem)
    loaded.partial_fit(255 - images[20:], [2, 3] * 10)
    assert all(torch.equal(a, b) for a, b in zip(loaded.net.state_dict().values(), mine.net.state_dict().values(),
                                                 strict=True))


def test_a_fresh_network_for_a_selection_has_the_same_stem():
    mine = learner()
    mine.partial_fit((pictures((1, 8, 8), 20) * 255).byte(), [0, 1] * 10)
    assert torch.equal(mine.tools.fresh(2).backbone.stem.weight, mine.net.backbone.stem.weight)
