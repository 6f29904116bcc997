"""Checkpoints of other libraries: taming-transformers' by name and arithmetic, diffusers' as it saves itself."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from protocore.codecs import codebook, diffusers_vq, taming
from protocore.codecs.codebook import CodebookCodec
from protocore.errors import DataError, UserError

needs_diffusers = pytest.mark.skipif(
    importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed: protocore[diffusers]"
)

DDCONFIG = {
    "double_z": False, "z_channels": 6, "resolution": 16, "in_channels": 3, "out_ch": 3, "ch": 32,
    "ch_mult": [1, 2, 2], "num_res_blocks": 1, "attn_resolutions": [8], "dropout": 0.0,
}  # fmt: skip
CONFIG = {
    "model": {
        "base_learning_rate": 4.5e-6,
        "target": "taming.models.vqgan.VQModel",
        "params": {"embed_dim": 5, "n_embed": 20, "ddconfig": DDCONFIG, "lossconfig": {"target": "any", "params": {}}},
    }
}
# name, widths in and out: written by hand from the layout of the published checkpoints
BLOCKS = [
    ("encoder.down.0.block.0", 32, 32), ("encoder.down.1.block.0", 32, 64), ("encoder.down.2.block.0", 64, 64),
    ("encoder.mid.block_1", 64, 64), ("encoder.mid.block_2", 64, 64),
    ("decoder.mid.block_1", 64, 64), ("decoder.mid.block_2", 64, 64),
    ("decoder.up.2.block.0", 64, 64), ("decoder.up.2.block.1", 64, 64),
    ("decoder.up.1.block.0", 64, 64), ("decoder.up.1.block.1", 64, 64),
    ("decoder.up.0.block.0", 64, 32), ("decoder.up.0.block.1", 32, 32),
]  # fmt: skip
ATTENTIONS = [
    "encoder.down.1.attn.0", "encoder.mid.attn_1",
    "decoder.mid.attn_1", "decoder.up.1.attn.0", "decoder.up.1.attn.1",
]  # fmt: skip
CONVOLUTIONS = [
    ("encoder.conv_in", 32, 3, 3), ("encoder.down.0.downsample.conv", 32, 32, 3),
    ("encoder.down.1.downsample.conv", 64, 64, 3), ("encoder.conv_out", 6, 64, 3), ("quant_conv", 5, 6, 1),
    ("post_quant_conv", 6, 5, 1), ("decoder.conv_in", 64, 6, 3), ("decoder.up.2.upsample.conv", 64, 64, 3),
    ("decoder.up.1.upsample.conv", 64, 64, 3), ("decoder.conv_out", 3, 32, 3),
]  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the tiny model."""
    found: dict[str, tuple[int, ...]] = {"quantize.embedding.weight": (20, 5)}

    def conv(name: str, out: int, into: int, side: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = (out, into, side, side), (out,)

    def norm(name: str, width: int) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (width,)

    for row in CONVOLUTIONS:
        conv(*row)
    for name, before, after in BLOCKS:
        norm(f"{name}.norm1", before)
        conv(f"{name}.conv1", after, before, 3)
        norm(f"{name}.norm2", after)
        conv(f"{name}.conv2", after, after, 3)
        if before != after:
            conv(f"{name}.nin_shortcut", after, before, 1)
    for name in ATTENTIONS:
        norm(f"{name}.norm", 64)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", 64, 64, 1)
    norm("encoder.norm_out", 64)
    norm("decoder.norm_out", 32)
    return found


def tiny_weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes().items():
        fan_in = max(1, torch.Size(shape[1:]).numel())
        weights[name] = torch.randn(shape, generator=generator) / fan_in**0.5 + ("norm" in name and "weight" in name)
    weights["quantize.embedding.weight"] = torch.randn((20, 5), generator=generator)
    return weights


def written(folder: Path, weights: dict[str, Any], config: Any = CONFIG, **beside: Any) -> tuple[Path, Path]:
    (folder / "model.yaml").write_text(yaml.safe_dump(config))
    torch.save({"state_dict": weights, "epoch": 3, **beside}, folder / "last.ckpt")
    return folder / "model.yaml", folder / "last.ckpt"


@pytest.fixture
def tiny(tmp_path: Path) -> taming.Taming:
    return taming.load(*written(tmp_path, tiny_weights()), (3, 16, 16))


# -- a slow reference in plain operations -----------------------------------------------------------------------


class Reference:
    """The published network as a list of steps over a state dict."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.w = weights

    def conv(self, name: str, x: Tensor, **how: int) -> Tensor:
        return F.conv2d(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], **how)

    def norm(self, name: str, x: Tensor) -> Tensor:
        groups = x.reshape(len(x), 32, -1)
        mean, var = groups.mean(2, keepdim=True), groups.var(2, keepdim=True, unbiased=False)
        flat = ((groups - mean) / (var + 1e-6).sqrt()).reshape(x.shape)
        return flat * self.w[f"{name}.weight"][:, None, None] + self.w[f"{name}.bias"][:, None, None]

    def swish(self, x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))

    def block(self, name: str, x: Tensor) -> Tensor:
        h = self.conv(f"{name}.conv1", self.swish(self.norm(f"{name}.norm1", x)), padding=1)
        h = self.conv(f"{name}.conv2", self.swish(self.norm(f"{name}.norm2", h)), padding=1)
        return h + (self.conv(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in self.w else x)

    def attention(self, name: str, x: Tensor) -> Tensor:
        normed = self.norm(f"{name}.norm", x)
        q, k, v = (self.conv(f"{name}.{p}", normed)[0].flatten(1) for p in "qkv")  # (C, positions)
        out = torch.zeros_like(v)
        for i in range(q.shape[1]):
            score = torch.stack([q[:, i] @ k[:, j] for j in range(k.shape[1])]) / q.shape[0] ** 0.5
            out[:, i] = v @ (score.exp() / score.exp().sum())
        return x + self.conv(f"{name}.proj_out", out.reshape(x.shape))

    def halve(self, name: str, x: Tensor) -> Tensor:
        wider = torch.zeros(*x.shape[:2], x.shape[2] + 1, x.shape[3] + 1)
        wider[..., :-1, :-1] = x
        return self.conv(f"{name}.conv", wider, stride=2)

    def double(self, name: str, x: Tensor) -> Tensor:
        return self.conv(f"{name}.conv", x.repeat_interleave(2, 2).repeat_interleave(2, 3), padding=1)

    def middle(self, name: str, x: Tensor) -> Tensor:
        x = self.attention(f"{name}.attn_1", self.block(f"{name}.block_1", x))
        return self.block(f"{name}.block_2", x)

    def encode(self, x: Tensor) -> Tensor:
        x = self.conv("encoder.conv_in", x, padding=1)
        x = self.halve("encoder.down.0.downsample", self.block("encoder.down.0.block.0", x))
        x = self.attention("encoder.down.1.attn.0", self.block("encoder.down.1.block.0", x))
        x = self.block("encoder.down.2.block.0", self.halve("encoder.down.1.downsample", x))
        x = self.swish(self.norm("encoder.norm_out", self.middle("encoder.mid", x)))
        return self.conv("quant_conv", self.conv("encoder.conv_out", x, padding=1))

    def decode(self, z: Tensor) -> Tensor:
        x = self.conv("decoder.conv_in", self.conv("post_quant_conv", z), padding=1)
        x = self.middle("decoder.mid", x)
        for level in (2, 1, 0):
            for i in (0, 1):
                x = self.block(f"decoder.up.{level}.block.{i}", x)
                x = self.attention(f"decoder.up.{level}.attn.{i}", x) if level == 1 else x
            x = self.double(f"decoder.up.{level}.upsample", x) if level else x
        return self.conv("decoder.conv_out", self.swish(self.norm("decoder.norm_out", x)), padding=1)


def images(count: int = 2, channels: int = 3, height: int = 16, width: int = 16) -> Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(1))


# -- taming -----------------------------------------------------------------------------------------------------


def test_the_network_has_the_published_names_and_shapes(tmp_path: Path) -> None:
    path, _ = written(tmp_path, {})
    model = taming.TamingModel(taming.read_config(path))
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == shapes()


def test_taming_agrees_with_the_reference(tiny: taming.Taming) -> None:
    reference, pictures = Reference(tiny_weights()), images(1)
    z = tiny.encode(pictures)
    assert torch.allclose(z, reference.encode(pictures * 2 - 1), atol=1e-4)
    assert z.shape == (1, *tiny.latent_shape) == (1, 5, 4, 4)
    nearest = torch.stack([((z[0].flatten(1).T[i] - tiny.codebook) ** 2).sum(1).argmin() for i in range(16)])
    assert torch.equal(tiny.indices(z).flatten(), nearest)
    stored = tiny.codebook[nearest].T.reshape(1, 5, 4, 4)
    assert torch.allclose(tiny.quantise(z), stored, atol=1e-6)
    expected = ((reference.decode(stored) + 1) / 2).clamp(0, 1)
    assert torch.allclose(tiny.decode(stored), expected, atol=1e-4)
    assert float(expected.std()) > 0.02  # not clamped flat


def contract(codec: CodebookCodec) -> None:
    """What both loaders must do, on any picture shape they take."""
    channels, height, width = codec.image_shape
    pictures = images(3, channels, height, width)
    z = codec.encode(pictures)
    assert tuple(z.shape[1:]) == codec.latent_shape
    stored = codec.to_bytes(z)
    assert {len(s) for s in stored} == {codec.exemplar_bytes}
    back = codec.from_bytes(stored)
    assert torch.allclose(back, codec.quantise(z), atol=1e-5)
    assert codec.to_bytes(back) == stored
    assert codec.to_bytes(codec.quantise(z)) == stored
    decoded = codec.decode(back)
    assert decoded.shape == pictures.shape
    assert float(decoded.min()) >= 0
    assert float(decoded.max()) <= 1
    z = z.detach().requires_grad_(True)
    codec.decode(codec.quantise(z)).square().sum().backward()
    assert z.grad is not None
    assert float(z.grad.abs().sum()) > 0
    assert not any(p.requires_grad for p in codec.model.parameters())
    with pytest.raises(DataError):
        codec.from_bytes([stored[0] + b"\0"])
    with pytest.raises(DataError):
        codec.encode(images(1, channels, height + 1, width))


def test_taming_agrees_with_the_library_itself(tmp_path: Path) -> None:
    # With its dependencies it asks for torchvision, which does not go with every build of torch.
    why = "taming-transformers is not installed: pip install --no-deps taming-transformers-rom1504 einops"
    model = pytest.importorskip("taming.modules.diffusionmodules.model", reason=why)
    vqvae = pytest.importorskip("taming.modules.vqvae.quantize", reason=why)
    torch.manual_seed(0)
    theirs = torch.nn.ModuleDict({
        "encoder": model.Encoder(**DDCONFIG), "decoder": model.Decoder(**DDCONFIG),
        "quantize": vqvae.VectorQuantizer2(20, 5, beta=0.25, remap=None, sane_index_shape=False),
        "quant_conv": torch.nn.Conv2d(6, 5, 1), "post_quant_conv": torch.nn.Conv2d(5, 6, 1),
    }).eval()
    torch.nn.init.normal_(theirs["quantize"].embedding.weight)
    ours = taming.load(*written(tmp_path, theirs.state_dict()), (3, 16, 16))
    with torch.no_grad():
        latents = theirs["quant_conv"](theirs["encoder"](2 * images() - 1))
        codes = theirs["quantize"](latents)[0]
        pictures = (theirs["decoder"](theirs["post_quant_conv"](codes)) + 1) / 2
        z = ours.encode(images())
        assert torch.allclose(z, latents, atol=1e-5)
        assert torch.allclose(ours.from_bytes(ours.to_bytes(z)), codes, atol=1e-5)
        assert torch.allclose(ours.decode(codes), pictures.clamp(0, 1), atol=1e-5)


def test_taming_contract(tiny: taming.Taming) -> None:
    contract(tiny)
    assert tiny.exemplar_bytes == 10  # 16 indices of 5 bits for 20 codes
    decoding = [t for n, t in tiny_weights().items() if n.startswith(("decoder.", "post_quant_conv.", "quantize."))]
    assert tiny.shared_bytes == 4 * sum(t.numel() for t in decoding)


def test_grey_pictures_and_sides_that_are_no_multiple(tmp_path: Path) -> None:
    paths = written(tmp_path, tiny_weights())
    contract(taming.load(*paths, (1, 13, 18)))
    grey = taming.load(*paths, (1, 16, 16))
    colour = taming.load(*paths, (3, 16, 16))
    pictures = images(2, 1)
    z = grey.encode(pictures)
    assert torch.allclose(z, colour.encode(pictures.expand(-1, 3, -1, -1)))
    assert torch.allclose(grey.decode(z), colour.decode(z).mean(1, keepdim=True))
    with pytest.raises(DataError, match="channels"):
        taming.load(*paths, (2, 16, 16))


def test_search_in_pieces_is_the_same(tiny: taming.Taming, monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.randn(7, 5, 4, 4, generator=torch.Generator().manual_seed(2))
    whole = tiny.indices(z)
    monkeypatch.setattr(codebook, "_CELLS", 60)
    assert torch.equal(tiny.indices(z), whole)
    assert tiny.indices(z[:0]).shape == (0, 4, 4)
    assert tiny.to_bytes(z[:0]) == []


def test_digest_follows_every_weight_and_the_shape(tmp_path: Path) -> None:
    paths = written(tmp_path, tiny_weights())
    first = taming.load(*paths, (3, 16, 16)).digest
    assert first == taming.load(*paths).digest  # the yaml's own resolution
    found = {first, taming.load(*paths, (3, 32, 32)).digest}
    for name in ("quantize.embedding.weight", "decoder.conv_out.bias", "encoder.conv_in.weight"):
        changed = tiny_weights()
        changed[name].view(-1)[-1] += 1e-3
        found.add(taming.load(*written(tmp_path, changed)).digest)
    assert len(found) == 5


def test_loss_and_halves_and_bare_state_dicts_load(tmp_path: Path) -> None:
    weights = tiny_weights()
    extra = {"loss.discriminator.main.0.weight": torch.zeros(2), "loss.logvar": torch.zeros(()), "colorize": None}
    first = taming.load(*written(tmp_path, weights)).digest
    assert taming.load(*written(tmp_path, {**weights, **extra})).digest == first
    path, checkpoint = written(tmp_path, {})
    torch.save(weights, checkpoint)
    assert taming.load(path, checkpoint).digest == first
    halves = taming.load(*written(tmp_path, {k: v.half() for k, v in weights.items()}))
    assert halves.codebook.dtype == torch.float32
    contract(halves)


@pytest.mark.parametrize("name", ["encoder.down.1.attn.0.q.weight", "quantize.embedding.weight", "quant_conv.bias"])
def test_missing_misshaped_or_broken_tensors_are_named(tmp_path: Path, name: str) -> None:
    weights = tiny_weights()
    for lie in (torch.zeros(1, 2), weights[name].long(), weights[name] * float("nan"), None, "text"):
        with pytest.raises(DataError, match=name):
            taming.load(*written(tmp_path, {**weights, name: lie}))
    del weights[name]
    with pytest.raises(DataError, match=rf"last\.ckpt: lacks {name}"):
        taming.load(*written(tmp_path, weights))


def test_weights_that_the_yaml_does_not_describe(tmp_path: Path) -> None:
    deeper = {**tiny_weights(), "encoder.down.1.block.1.conv1.weight": torch.zeros(64, 64, 3, 3)}
    with pytest.raises(DataError, match=r"encoder\.down\.1\.block\.1\.conv1\.weight"):
        taming.load(*written(tmp_path, deeper))


class Trap:
    """Unpickling it would run a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    paths = written(tmp_path, tiny_weights(), callbacks=Trap(tmp_path / "mark"))
    with pytest.raises(DataError, match="would run"):
        taming.load(*paths)
    old = {"state_dict": tiny_weights(), "callbacks": Trap(tmp_path / "mark")}
    torch.save(old, paths[1], _use_new_zipfile_serialization=False)
    with pytest.raises(DataError, match="without running its code"):
        taming.load(*paths)
    assert not (tmp_path / "mark").exists()


def test_classes_of_the_trainer_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lightning writes them: a class as a key, and objects with arguments and state."""
    module = types.ModuleType("pytorch_lightning.fake")

    class Callback:
        def __init__(self, mark: Path) -> None:
            self.mark = mark

        def __reduce__(self) -> tuple[Any, ...]:
            return Callback, (str(self.mark),), {"best": 1.0}

    Callback.__module__, Callback.__qualname__ = module.__name__, "Callback"
    module.Callback = Callback  # type: ignore[attr-defined]
    for name in ("pytorch_lightning", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    beside = {"callbacks": {Callback: {"best": torch.ones(())}}, "hparams": Callback(tmp_path)}
    paths = written(tmp_path, tiny_weights(), **beside)
    monkeypatch.undo()
    assert "pytorch_lightning" not in sys.modules
    first = taming.load(*paths).digest
    assert first == taming.load(*written(tmp_path, tiny_weights())).digest


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    path, checkpoint = written(tmp_path, tiny_weights())
    whole = checkpoint.read_bytes()
    for data in (b"", b"garbage" * 100, whole[:100], whole[: len(whole) // 2], whole[:-30]):
        checkpoint.write_bytes(data)
        with pytest.raises(DataError, match=r"last\.ckpt"):
            taming.load(path, checkpoint)
    for odd in (3, [1, 2], {"state_dict": 4}, {"state_dict": {}}):
        torch.save(odd, checkpoint)
        with pytest.raises(DataError, match=r"last\.ckpt"):
            taming.load(path, checkpoint)
    with pytest.raises(DataError, match=r"none\.ckpt"):
        taming.load(path, tmp_path / "none.ckpt")
    with pytest.raises(DataError, match="cannot be read"):
        taming.load(path, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ch": 10**9}, "ch is"),
        ({"ch": 33}, "multiples of 32"),
        ({"ch": "32"}, "ch is"),
        ({"ch": True}, "ch is"),
        ({"ch_mult": []}, "no levels"),
        ({"ch_mult": [1] * 17}, "ch_mult"),
        ({"ch_mult": 3}, "ch_mult"),
        ({"num_res_blocks": 10**4}, "64 blocks"),
        ({"z_channels": -1}, "z_channels"),
        ({"out_ch": 1}, "out_ch"),
        ({"double_z": True}, "double_z"),
        ({"resamp_with_conv": False}, "resamp_with_conv"),
        ({"attn_type": "linear"}, "attn_type"),
    ],
)
def test_configurations_that_describe_no_network(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    params = {**CONFIG["model"]["params"], "ddconfig": {**DDCONFIG, **change}}
    paths = written(tmp_path, {}, {"model": {"params": params}})
    with pytest.raises(DataError, match=said) as caught:
        taming.load(*paths)
    assert "model.yaml" in str(caught.value)


def test_yaml_that_is_none(tmp_path: Path) -> None:
    path, checkpoint = written(tmp_path, {})
    for text in ("", "a: [", "3", "model: 3", "model: {params: {ddconfig: 4}}", "!!python/object/apply:os.getcwd []"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"model\.yaml"):
            taming.load(path, checkpoint)
    missing = {"model": {"params": {**CONFIG["model"]["params"], "ddconfig": {"ch": 32}}}}
    with pytest.raises(DataError, match="ch_mult"):
        taming.load(*written(tmp_path, {}, missing))
    gumbel = {"model": {**CONFIG["model"], "target": "taming.models.vqgan.GumbelVQ"}}
    with pytest.raises(DataError, match="GumbelVQ"):
        taming.load(*written(tmp_path, {}, gumbel))


def with_values(folder: Path, **change: Any) -> tuple[Path, Path]:
    params = {**CONFIG["model"]["params"], "ddconfig": {**DDCONFIG, **change}}
    return written(folder, {}, {"model": {"params": params}})


def test_a_short_yaml_makes_no_long_error(tmp_path: Path) -> None:
    """Aliases: 9^8 values in some hundred bytes, wherever a value is told."""
    path, checkpoint = with_values(tmp_path)
    plain = path.read_text()
    bomb = "a0: &a0 [0, 0]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    for old, new in (("ch: 32", "ch: *a8"), ("dropout: 0.0", "attn_type: *a8"), ("resolution: 16", "resolution: *a8")):
        assert old in plain
        path.write_text(bomb + plain.replace(old, new))
        with pytest.raises(DataError, match=new.partition(":")[0]) as caught:
            taming.load(path, checkpoint)
        assert len(str(caught.value)) < 1000
    path.write_text(bomb + plain.replace("  params:", "  target: *a8\n  params:", 1))
    assert taming.read_config(path).ch == 32  # nothing was made of the target
    merged = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9)
    )
    path.write_text(merged + plain)
    with pytest.raises(DataError, match="merge keys"):
        taming.load(path, checkpoint)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0x" + "f" * 20_000, "a number of 80000 bits"),  # too long for int.__repr__
        ("9" * 5000, "cannot be read as yaml"),
        ("2024-99-99", "cannot be read as yaml"),
        ("!!int ''", "cannot be read as yaml"),
        ("!!timestamp x", "cannot be read as yaml"),
        ("'" + "x" * 5000 + "'", "ch is 'xxx"),
        ("!" + "x" * 5000 + " 1", "cannot be read as yaml"),
        ("[1, [2], {3: 4}]", r"ch is \[1, a list, a dict\]"),
        ("32 # " + "x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_odd_values_of_a_yaml(tmp_path: Path, value: str, said: str) -> None:
    path, checkpoint = with_values(tmp_path)
    path.write_text(path.read_text().replace("ch: 32", f"ch: {value}"))
    with pytest.raises(DataError, match=said) as caught:
        taming.load(path, checkpoint)
    assert len(str(caught.value)) < 1000


def test_parameters_are_counted_before_they_are_built(tmp_path: Path) -> None:
    tiny = taming.read_config(with_values(tmp_path)[0])
    for config in (
        tiny,
        replace(tiny, ch_mult=(3,), num_res_blocks=3, attn_resolutions=()),
        replace(tiny, ch_mult=(2, 1, 1, 4), resolution=18, attn_resolutions=(18, 9, 8, 4), in_channels=1, out_ch=1),
    ):
        with torch.device("meta"):
            model = taming.TamingModel(config)
        assert config.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("change", [{"ch": 16384}, {"ch_mult": [1, 1, 1024]}, {"z_channels": 16384, "ch": 2048}])
def test_a_yaml_cannot_ask_for_any_number_of_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(taming, "TamingModel", None)  # nothing is built
    with pytest.raises(DataError, match=r"model\.yaml: asks for \d+ parameters"):
        taming.load(*with_values(tmp_path, **change))


def test_tensors_that_the_file_does_not_hold(tmp_path: Path) -> None:
    weights, name = tiny_weights(), "decoder.mid.block_1.conv1.weight"
    shape = weights[name].shape
    for lie in (
        torch.ones(()).expand(shape),  # stride 0
        torch.ones(64, 1, 3, 3).expand(shape),
        torch.ones(shape).to_sparse(),
        torch.ones(shape, device="meta"),
    ):
        with pytest.raises(DataError, match=rf"{name} claims more values"):
            taming.load(*written(tmp_path, {**weights, name: lie}))
    with pytest.raises(DataError, match="float8"):
        taming.load(*written(tmp_path, {**weights, name: weights[name].to(torch.float8_e4m3fn)}))


def test_one_storage_cannot_be_every_tensor(tmp_path: Path) -> None:
    one = torch.rand(64 * 64 * 9)
    weights = {name: one[: torch.Size(shape).numel()].view(shape) for name, shape in shapes().items()}
    paths = written(tmp_path, weights)
    assert paths[1].stat().st_size < 4 * sum(w.numel() for w in weights.values())
    with pytest.raises(DataError, match="more than the file has"):
        taming.load(*paths)


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    path, checkpoint = written(tmp_path, {name: torch.zeros(shape) for name, shape in shapes().items()})
    with zipfile.ZipFile(checkpoint) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(checkpoint, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    with pytest.raises(DataError, match=r"last\.ckpt: would unfold to \d+ bytes"):
        taming.load(path, checkpoint)


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    path, checkpoint = written(tmp_path, tiny_weights())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for odd in (pipe, Path("/dev/zero")):
        for files in ((odd, checkpoint), (path, odd)):
            with pytest.raises(DataError, match="pipe or device"):
                taming.load(*files)


# -- diffusers --------------------------------------------------------------------------------------------------


def vq_model(**changes: Any) -> Any:
    from diffusers import VQModel

    torch.manual_seed(0)
    options: dict[str, Any] = {
        "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (32, 64), "latent_channels": 4, "num_vq_embeddings": 24, "sample_size": 16,
    }  # fmt: skip
    model = VQModel(**{**options, **changes}).eval()
    torch.nn.init.normal_(model.quantize.embedding.weight)
    return model


@needs_diffusers
def test_diffusers_folder_gives_what_the_library_gives(tmp_path: Path) -> None:
    model = vq_model()
    model.save_pretrained(tmp_path)
    codec = diffusers_vq.load(tmp_path, (3, 16, 16))
    contract(codec)
    pictures = images(2)
    with torch.no_grad():
        latents = model.encode(pictures * 2 - 1).latents
        expected = (model.decode(latents).sample + 1) / 2
    z = codec.encode(pictures)
    assert torch.allclose(z, latents, atol=1e-5)
    assert torch.allclose(codec.decode(codec.quantise(z)), expected.clamp(0, 1), atol=1e-5)
    assert torch.equal(codec.indices(z).flatten(), model.quantize(latents)[2][2])
    assert codec.exemplar_bytes == 8 * 8 * 5 // 8
    assert diffusers_vq.load(str(tmp_path)).digest == codec.digest
    assert diffusers_vq.load(str(tmp_path), (3, 32, 32)).digest != codec.digest


@needs_diffusers
@pytest.mark.parametrize("changes", [{"norm_type": "spatial", "vq_embed_dim": 4}, {"lookup_from_codebook": True}])
def test_diffusers_variants(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = vq_model(**changes)
    model.save_pretrained(tmp_path)
    codec = diffusers_vq.load(tmp_path, (3, 16, 16))
    contract(codec)
    with torch.no_grad():
        expected = (model.decode(model.encode(images() * 2 - 1).latents).sample + 1) / 2
    found = codec.decode(codec.quantise(codec.encode(images())))
    assert torch.allclose(found, expected.clamp(0, 1), atol=1e-5)


@needs_diffusers
def test_diffusers_folders_that_are_no_model(tmp_path: Path) -> None:
    for missing in (tmp_path / "none", str(tmp_path / "none"), "./none"):
        with pytest.raises(DataError, match="no such folder"):
            diffusers_vq.load(missing)
    with pytest.raises(DataError, match=str(tmp_path)):
        diffusers_vq.load(tmp_path)  # empty
    model = vq_model()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "diffusion_pytorch_model.safetensors")
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    for changed in (
        {k: v for k, v in weights.items() if k != "decoder.conv_out.weight"},
        {**weights, "decoder.conv_out.weight": torch.zeros(1)},
        {**weights, "more": torch.zeros(1)},
    ):
        save_file(changed, file, {"format": "pt"})
        with pytest.raises(DataError, match=str(tmp_path)):
            diffusers_vq.load(tmp_path)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match=str(tmp_path)):
        diffusers_vq.load(tmp_path)


def test_without_diffusers_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(UserError, match=r"pip install 'protocore\[diffusers\]'"):
        diffusers_vq.load("some/model")


def test_diffusers_is_not_imported_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    spec = importlib.util.find_spec("protocore.codecs.diffusers_vq")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def in_diffusers(name: str, levels: int) -> str:
    """The name of a taming weight in diffusers' VQModel."""
    parts = name.split(".")
    swap = {"nin_shortcut": "conv_shortcut", "norm_out": "conv_norm_out", "block_1": "resnets.0",
            "block_2": "resnets.1", "attn_1": "attentions.0", "mid": "mid_block"}  # fmt: skip
    if parts[1] == "down":
        parts[1:3] = [f"down_blocks.{parts[2]}"]
    elif parts[1] == "up":
        parts[1:3] = [f"up_blocks.{levels - 1 - int(parts[2])}"]
    if "attn" in name:
        swap |= {"norm": "group_norm", "q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}
    swap |= {"block": "resnets", "attn": "attentions", "downsample": "downsamplers.0", "upsample": "upsamplers.0"}
    return ".".join(swap.get(part, part) for part in parts)


@needs_diffusers
def test_taming_agrees_with_diffusers(tiny: taming.Taming) -> None:
    """The same weights under the other library's names give the same latents and pictures."""
    model = vq_model(
        down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(32, 64, 64), latent_channels=6, vq_embed_dim=5, num_vq_embeddings=20,
    )  # fmt: skip
    expected = model.state_dict()
    weights = {in_diffusers(name, 3): tensor for name, tensor in tiny_weights().items()}
    model.load_state_dict({name: weights[name].view(t.shape) for name, t in expected.items()})
    assert weights.keys() == expected.keys()
    with torch.no_grad():
        latents = model.encode(images() * 2 - 1).latents
        decoded = (model.decode(latents).sample + 1) / 2
    z = tiny.encode(images())
    assert torch.allclose(z, latents, atol=1e-4)
    assert torch.allclose(tiny.decode(tiny.quantise(z)), decoded.clamp(0, 1), atol=1e-4)
