"""Networks of transformers and of timm behind our interface; nothing is downloaded and no code of theirs is fetched."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from protocore.backbones import backbone_named, build_network
from protocore.backbones.brought import Brought
from protocore.errors import DataError, UserError
from protocore.files import read_tensors, serialise
from protocore.learn.learner import Learner

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folders(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A vision transformer and a ConvNeXt, tiny and untrained, as `save_pretrained` leaves them."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("hf")
    configs = {
        "vit": transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                      image_size=16, patch_size=8),
        "convnext": transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 12], depths=[1, 1, 1, 1], image_size=32),
    }
    for name, config in configs.items():
        transformers.AutoModel.from_config(config).save_pretrained(root / name)
    (root / "vit" / "preprocessor_config.json").write_text(json.dumps(
        {"size": {"height": 16, "width": 16}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.5, 0.25]}))
    return {name: root / name for name in configs}


def pictures(n: int = 3, side: int = 16) -> Tensor:
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_a_vision_transformer_gives_its_class_token(transformers: Any, folders: dict[str, Path]) -> None:
    net = build_network(f"hf:{folders['vit']}", SHAPE, trained=True).eval()
    theirs = transformers.AutoModel.from_pretrained(folders["vit"]).eval()
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.5, 0.25]).view(3, 1, 1)
    with torch.no_grad():
        wanted = theirs(pixel_values=(pictures() - mean) / std).last_hidden_state[:, 0]
        torch.testing.assert_close(net.features(pictures()), wanted)
    assert net.dim == 16
    assert not any("pooler" in name for name in net.state_dict())
    untrained = build_network(f"hf:{folders['vit']}", SHAPE).eval()
    assert untrained.state_dict().keys() == net.state_dict().keys()
    assert not torch.allclose(untrained.features(pictures()), wanted)


def test_a_network_with_maps_gives_what_it_pools(transformers: Any, folders: dict[str, Path]) -> None:
    info = backbone_named(f"hf:{folders['convnext']}")
    assert info.image_size == 32
    net = build_network(f"hf:{folders['convnext']}", (3, 32, 32), trained=True).eval()
    theirs = transformers.AutoModel.from_pretrained(folders["convnext"]).eval()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = pictures(2, 32)
    with torch.no_grad():
        torch.testing.assert_close(net.features(x), theirs(pixel_values=(x - mean) / std).pooler_output)
    assert net.dim == 12


def test_pictures_of_another_size_are_scaled_and_positions_stretched(folders: dict[str, Path]) -> None:
    at_home = build_network(f"hf:{folders['vit']}", (1, 5, 5), trained=True).eval()
    larger = build_network(f"hf:{folders['vit']}", (1, 5, 5), image_size=32, trained=True).eval()
    x = torch.rand(2, 1, 5, 5)
    with torch.no_grad():
        assert at_home.features(x).shape == larger.features(x).shape == (2, 16)
        assert not torch.allclose(at_home.features(x), larger.features(x))


def test_a_learners_file_needs_no_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    name = f"hf:{folders['vit']}"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 3, 16, 16), np.uint8)
    mine = Learner("ncm", None, backbone=name, threads=1)
    assert mine.image_shape == (3, 16, 16)
    assert mine.front is not None
    mine.partial_fit(images, ["a", "b"] * 6)
    assert float(mine.front.low) < 0  # its features have signs
    mine.save(tmp_path / "mine.learner")
    moved = folders["vit"].rename(tmp_path / "elsewhere")
    try:
        again = Learner.load(tmp_path / "mine.learner")
        assert torch.equal(again.scores(images), mine.scores(images))
        assert again.weights == mine.weights
        assert len(mine.weights) == 64
        with pytest.raises(UserError, match="cannot be used"):
            Learner("ncm", SHAPE, backbone=name, threads=1)
    finally:
        moved.rename(folders["vit"])


@pytest.mark.parametrize(("change", "told"), [
    ({"hidden_size": 10**9}, "too much"), ({"hidden_size": 4096, "num_attention_heads": 4}, "larger than its weights"),
    ({"model_type": "nothing"}, "nothing"), ({"hidden_size": "many"}, "damaged"), (None, "damaged"),
])
def test_what_a_strangers_file_says_of_its_network_is_not_believed(
        change: dict[str, Any] | None, told: str, folders: dict[str, Path], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Learner("ncm", SHAPE, backbone=f"hf:{folders['vit']}", threads=1)
    mine.partial_fit(np.zeros((4, 3, 16, 16), np.uint8), ["a", "b"] * 2)
    mine.record = {**mine.record, "config": None if change is None else {**mine.record["config"], **change}}
    mine.save(tmp_path / "mine.learner")
    with pytest.raises(UserError, match=told):
        Learner.load(tmp_path / "mine.learner")


def test_folders_that_are_none_of_a_model(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"--backbone hf:\S*empty: cannot be used .*; give hf:FOLDER with config.json"):
        build_network(f"hf:{tmp_path / 'empty'}", SHAPE, trained=True)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_bytes((folders["vit"] / "config.json").read_bytes())
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(UserError, match="cannot be used"):
        build_network(f"hf:{pickled}", SHAPE, trained=True)
    short = tmp_path / "short"
    short.mkdir()
    tensors, metadata = read_tensors(folders["vit"] / "model.safetensors")
    gone = next(name for name in tensors if "layernorm_before" in name)
    (short / "model.safetensors").write_bytes(serialise({k: v for k, v in tensors.items() if k != gone}, metadata))
    (short / "config.json").write_bytes((folders["vit"] / "config.json").read_bytes())
    with pytest.raises(DataError, match="has no weights for"):
        build_network(f"hf:{short}", SHAPE, trained=True)


def test_code_of_a_folder_is_never_run(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "coded"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {
        "AutoConfig": "code.Config", "AutoModel": "code.Model"}}))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    with pytest.raises(UserError, match="cannot be used"):
        build_network(f"hf:{folder}", SHAPE, trained=True)
    assert not (tmp_path / "ran").exists()


def test_width_and_norm_are_not_for_them(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="leave --width, --norm out"):
        build_network(f"hf:{folders['vit']}", SHAPE, width=8)
    with pytest.raises(UserError, match=r"unknown backbone 'hf:'.*hf:FOLDER-OR-ID, timm:NAME"):
        build_network("hf:", SHAPE)


# -- timm --------------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, bias=False)
        nn.init.constant_(self.conv.weight, 0.5 if trained else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What we use of the library, in its place: it cannot be imported beside this torch."""
    asked: list[dict[str, Any]] = []
    library = ModuleType("timm")

    def create_model(name: str, **more: Any) -> nn.Module:
        asked.append({"name": name, **more})
        if name == "gone":
            raise RuntimeError("no network here\nand more")
        return Model(more["pretrained"])

    cfg = SimpleNamespace(mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5), input_size=(3, 12, 12))
    vars(library).update(create_model=create_model, list_models=lambda pretrained: ["tiny_net", "other"],
                         get_pretrained_cfg=lambda name: cfg if name in ("tiny_net", "gone") else None)
    monkeypatch.setitem(sys.modules, "timm", library)
    return asked


def test_a_model_of_timm_brings_size_normalisation_and_weights(timm: list[dict[str, Any]]) -> None:
    net = build_network("timm:tiny_net", SHAPE, trained=True).eval()
    assert isinstance(net.backbone.module, Brought)
    assert timm == [{"name": "tiny_net", "pretrained": True, "num_classes": 0}]
    x = torch.ones(1, 3, 12, 12)
    wanted = 0.5 * 9 * sum((1 - mean) / 0.5 for mean in (0.1, 0.2, 0.3))
    torch.testing.assert_close(net.features(x), torch.full((1, 6), wanted))
    assert net.backbone.image_size == (12, 12)
    assert not build_network("timm:tiny_net", SHAPE).features(x).any()


def test_a_learner_with_a_model_of_timm(timm: list[dict[str, Any]], tmp_path: Path) -> None:
    mine = Learner("ncm", SHAPE, backbone="timm:tiny_net", threads=1)
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16), np.uint8)
    mine.partial_fit(images, [0, 1] * 4).save(tmp_path / "mine.learner")
    timm.clear()
    assert torch.equal(Learner.load(tmp_path / "mine.learner").scores(images), mine.scores(images))
    assert [asked["pretrained"] for asked in timm] == [False]


def test_what_goes_wrong_in_timm_is_told(timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no trained model of this name; did you mean timm:tiny_net"):
        build_network("timm:tiny_nt", SHAPE, trained=True)
    with pytest.raises(UserError, match=r"timm:gone: cannot be made \('no network here'\)"):
        build_network("timm:gone", SHAPE, trained=True)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"timm cannot be imported .*torchvision .*efficientnet-lite0 or hf:FOLDER"):
        build_network("timm:tiny_net", SHAPE, trained=True)
