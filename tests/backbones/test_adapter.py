"""Modules of somebody else's as backbones: what they need, what they may bring, what is told where they do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocore import backbones
from protocore.backbones import build_network
from protocore.errors import UserError

SHAPE = (3, 12, 10)


def images(n: int = 4, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))


class Conv(nn.Module):
    """A map of 7 channels, with batch norm."""

    def __init__(self, **brought: object) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 7, 3, stride=2), nn.BatchNorm2d(7)
        for name, value in brought.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


class Whole(nn.Module):
    """A classifier whose `features` are a part, as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
        self.classifier = nn.Linear(5, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def test_a_map_becomes_features_by_its_mean() -> None:
    module = Conv().eval()
    network = build_network(module, SHAPE).eval()
    network.grow(4)
    x = images()
    assert network.dim == 7
    torch.testing.assert_close(network.features(x), module(x).mean((2, 3)))
    assert network(x).shape == (4, 4)
    assert network.features(x[:0]).shape == (0, 7)


def test_features_go_before_being_called() -> None:
    module = Whole()
    network = build_network(module, SHAPE)
    assert network.dim == 5
    torch.testing.assert_close(network.features(images()), module.features(images()).mean((2, 3)))


def test_a_vector_stays_as_it_is_and_dim_is_believed_when_it_is_right() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(360, 9))
    assert build_network(module, SHAPE).dim == 9
    module.dim = 9  # type: ignore[assignment]
    network = build_network(module, SHAPE)
    torch.testing.assert_close(network.features(images()), module(images()))
    module.dim = 8  # type: ignore[assignment]
    with pytest.raises(UserError, match="its dim is 8, but it gives 9 features"):
        build_network(module, SHAPE)


def test_looking_for_dim_leaves_no_trace() -> None:
    module = Conv().train()
    module.conv.eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    generator = torch.get_rng_state()
    made = build_network(module, SHAPE).backbone.module
    assert isinstance(made, Conv)
    assert (made.training, made.conv.training, made.norm.training) == (True, False, True)
    assert all(torch.equal(v, before[k]) for k, v in made.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_each_network_has_a_copy_and_the_module_itself_is_not_trained() -> None:
    module = Conv()
    first, second = build_network(module, SHAPE), build_network(module, SHAPE)
    first.grow(2)
    optimiser = torch.optim.SGD(first.parameters(), lr=0.1)
    F.cross_entropy(first(images()), torch.tensor([0, 1, 0, 1])).backward()
    optimiser.step()
    mine, other = first.backbone.module, second.backbone.module
    assert isinstance(mine, Conv)
    assert isinstance(other, Conv)
    assert not torch.equal(mine.conv.weight, module.conv.weight)
    assert torch.equal(other.conv.weight, module.conv.weight)
    assert not module.norm.running_mean.any()  # pyright: ignore[reportOptionalMemberAccess]
    assert mine.norm.running_mean.any()  # pyright: ignore[reportOptionalMemberAccess]


def test_it_may_bring_its_own_normalisation() -> None:
    module = Conv(mean=[0.1, 0.2, 0.3], std=(0.5, 1.0, 2.0)).eval()
    network = build_network(module, SHAPE, mean=[0.9] * 3, std=[0.9] * 3).eval()  # the data's own, which it replaces
    x = images()
    scaled = (x - torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1)) / torch.tensor([0.5, 1.0, 2.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(network.features(x), module(scaled).mean((2, 3)))
    with pytest.raises(UserError, match=r"mean: .* has 1 values, the images have 3 channels"):
        build_network(Conv(mean=[0.5], std=[0.5]), SHAPE)


@pytest.mark.parametrize(("brought", "told"), [
    ({"mean": [0.5] * 3}, "one of mean and std; give both"),
    ({"mean": torch.zeros(3), "std": torch.ones(3)}, "another name if the module does it by itself"),
    ({"image_size": "large"}, "image_size is 'large'; give a whole number"),
    ({"image_size": (4, 0)}, r"image_size is \(4, 0\)"),
])
def test_what_it_brings_must_make_sense(brought: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        build_network(Conv(**brought), SHAPE)


@pytest.mark.parametrize(("size", "sides"), [(24, (24, 24)), ((6, 5), (6, 5)), ((12, 10), (12, 10))])
def test_pictures_are_resized_to_its_input(size: int | tuple[int, int], sides: tuple[int, int]) -> None:
    met: list[Tensor] = []
    module = Conv(image_size=size)
    network = build_network(module, SHAPE, mean=[0.5] * 3, std=[0.25] * 3).eval()
    network.backbone.module.register_forward_pre_hook(lambda _, given: met.append(given[0]))
    x = images().requires_grad_(True)
    network.features(x).sum().backward()
    assert tuple(met[0].shape[2:]) == sides
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    flat = torch.full((2, *SHAPE), 0.75)  # a blank stays a blank of the same value
    network.features(flat)
    torch.testing.assert_close(met[1], torch.ones_like(met[1]), atol=1e-5, rtol=0)
    if sides == SHAPE[1:]:
        torch.testing.assert_close(met[0], (x - 0.5) / 0.25)


class Gives(nn.Module):
    def __init__(self, made: object) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> object:
        return self.made(x) if callable(self.made) else self.made


@pytest.mark.parametrize(("made", "told"), [
    (lambda x: (x, x), "gave .*it must give a tensor"),
    (lambda x: {"out": x}, "take the one that is meant out of it"),
    (lambda x: x.flatten(), r"shape \(720,\) for 2 pictures"),
    (lambda x: x.flatten(2), r"shape \(2, 3, 120\)"),
    (lambda x: x.flatten(1)[:1], r"shape \(1, 360\)"),
    (lambda x: x[:, :0].flatten(1), r"shape \(2, 0\)"),
    (lambda x: x.flatten(1).long(), "int64"),
    (lambda x: F.conv2d(x, torch.zeros(1, 1, 3, 3)), "cannot take pictures of shape .*RuntimeError"),
])
def test_wrong_outputs_are_told_at_once(made: object, told: str) -> None:
    with pytest.raises(UserError, match=f"backbone Gives: .*{told}"):
        build_network(Gives(made), SHAPE)


def test_an_output_that_changes_later_is_told() -> None:
    network = build_network(Gives(lambda x: x.flatten(1) if len(x) < 3 else x.flatten()[:5]), SHAPE)
    with pytest.raises(UserError, match=r"gave \(5,\) for 4 pictures where \(4, 360\) was expected"):
        network.features(images())


class Layered(Conv):
    def layers(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.conv(x)
        return first, self.norm(first).relu()


def test_layers_are_missed_only_where_they_are_asked_for() -> None:
    network = build_network(Conv(), SHAPE).eval()
    network.features(images())
    with pytest.raises(UserError, match=r"backbone Conv: has no layers\(x\)"):
        network.layers(images())
    for wrong in (nn.ModuleList(), nn.Sequential(nn.Conv2d(3, 4, 1))):  # modules by that name are not meant
        with pytest.raises(UserError, match=r"has no layers\(x\)"):
            build_network(Conv(layers=wrong), SHAPE).layers(images())
    with pytest.raises(UserError, match=r"layers\(x\) gave .*; it must give a list of tensors"):
        build_network(Conv(layers=lambda x: x), SHAPE).layers(images())


def test_layers_end_in_the_features() -> None:
    network = build_network(Layered(), SHAPE).eval()
    first, last = network.layers(images())
    assert first.shape == (4, 7, 5, 4)
    torch.testing.assert_close(last, network.features(images()))


def test_width_and_norm_are_for_what_has_a_name() -> None:
    with pytest.raises(UserError, match="leave them out"):
        build_network(Conv(), SHAPE, width=8)


def test_a_module_that_finds_its_own_sizes_is_whole_before_it_is_trained() -> None:
    network = build_network(nn.Sequential(nn.Flatten(), nn.LazyLinear(6)), SHAPE)
    assert network.dim == 6
    assert sum(p.numel() for p in network.parameters() if p.ndim == 2) == 360 * 6


def test_its_state_goes_through_a_fresh_network() -> None:
    network = build_network(Conv(image_size=8), SHAPE, mean=[0.5] * 3)
    network.grow(3)
    network.train()(images())
    other = build_network(Conv(image_size=8), SHAPE)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.eval()(images()), network.eval()(images()))
    assert torch.equal(network.frozen_copy()(images()), network(images()))


def test_a_registered_builder_may_give_any_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones.BACKBONES, "_things", dict(backbones.BACKBONES._things))
    backbones.register("mine", lambda shape, width, norm: nn.Conv2d(shape[0], width or 6, 3), "a map")
    assert build_network("mine", SHAPE).dim == 6
    assert build_network("mine", SHAPE, width=9).dim == 9
