"""A learner as an ONNX file: it says what the learner says, for every kind of predictor, or it is not written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import protocore
from helpers import SHAPE, learner, noise, task_of
from protocore import device
from protocore.backbones import Network
from protocore.cli import main
from protocore.errors import DataError, UserError
from protocore.learn import export, graph
from protocore.learn.graph import frozen_graph
from protocore.learn.learner import Learner
from protocore.methods import METHODS
from protocore.methods.parts.frozen import LinearScores
from protocore.methods.parts.gaussian import Mahalanobis
from protocore.methods.parts.means import NearestMean
from protocore.methods.parts.neighbours import HeadAndNeighbours
from protocore.methods.pass_ import Unturned

SHORT = {
    "csrel": {"ref_epochs": 1, "selection_steps": 2, "proxy_steps": 2},
    "pbcs": {"outer_steps": 3, "inner_steps": 3},
    "onpro": {"variants": 1},
    "protocore": {"spc": 2},
    "ranpac": {"project": "50"},
    "er": {"backbone": "convnet", "head": "cosine"},
}
NEW = noise(range(35), seed=7)
# Each kind of predictor is exported below, by this method.
KINDS = {Network: "er", NearestMean: "icarl", Mahalanobis: "fecam", Unturned: "pass", LinearScores: "ranpac",
         HeadAndNeighbours: "protocore"}


def taught(name: str, **flags: Any) -> Learner:
    mine = learner(name, **SHORT.get(name, {}) | flags)
    for number, classes in enumerate(([0, 1], [2, 3])):
        mine.learn(task_of(classes * 8, seed=number))
    return mine


class Resized(nn.Module):
    """Somebody's own, for pictures of another size."""

    image_size = (6, 5)

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x).relu()


def fronted() -> Learner:
    mine = protocore.Learner("slda", SHAPE, backbone=Resized(), freeze="all", mean=[0.4], std=[0.3])
    return mine.learn(task_of([0, 1, 2] * 8))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_graph_of_every_method_says_what_the_learner_says(name: str) -> None:
    mine = taught(name)
    predictor = mine.method.predictor()
    assert type(predictor) in KINDS, "a new kind of predictor: add it, so that it is exported below"
    found = frozen_graph(predictor, mine.method.seen)
    scores, features = found(torch.from_numpy(NEW))
    assert (len(features), features.ndim) == (len(NEW), 2)
    torch.testing.assert_close(scores, mine.scores(NEW), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [
    *(pytest.param(lambda name=name: taught(name), id=name) for name in KINDS.values()),
    pytest.param(fronted, id="front"),
    pytest.param(lambda: taught("icarl", mirror=True), id="mirror"),
])
def test_onnxruntime_says_what_the_learner_says_of_any_number_of_pictures(make: Any, tmp_path: Path) -> None:
    mine = make()
    mine.temperature = 0.7
    done = mine.export(tmp_path / "x.onnx")
    assert done.parity.difference <= export.TOLERANCE
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    assert [(i.name, i.type, i.shape[1:]) for i in session.get_inputs()] == [("pictures", "tensor(uint8)", list(SHAPE))]
    for count in (1, 2, 35):
        scores, *features = session.run(None, {"pictures": NEW[:count]})
        np.testing.assert_allclose(scores, mine.scores(NEW[:count]), rtol=1e-4, atol=1e-4)
        assert [(len(z), z.ndim) for z in features] == ([] if mine.settings.mirror else [(count, 2)])
    classifier = device.load(tmp_path / "x.onnx")
    assert classifier.predict(NEW) == mine.predict(NEW).tolist()
    np.testing.assert_allclose(classifier.predict_proba(NEW), mine.predict_proba(NEW), atol=1e-4)


def test_the_metadata_say_what_a_program_needs_and_nothing_of_this_machine(tmp_path: Path) -> None:
    mine = protocore.Learner("er", SHAPE, backbone="mlp", width=8, spc=3, steps=4)
    mine.partial_fit(noise(range(12)), ["stop", "go", "stop", "park"] * 3)
    done = mine.export(tmp_path / "x.onnx")
    data = (tmp_path / "x.onnx").read_bytes()
    stored = onnxruntime.InferenceSession(data).get_modelmeta().custom_metadata_map
    about = json.loads(stored["protocore"])
    assert about["classes"] == ["go", "park", "stop"]
    assert about["image_shape"] == list(SHAPE)
    assert about["version"] == protocore.__version__
    assert about["parity"] == {"pictures": 9, "of": "the memory", "difference": done.parity.difference}
    assert "middle cut out" in about["resize"]
    assert stored["sha256"] == done.sha256
    assert (done.bytes, done.classes) == (len(data), 3)
    assert str(Path(protocore.__file__).parent).encode() not in data
    assert onnx.load_from_string(data).opset_import[0].version == graph.OPSET
    mine.export(tmp_path / "y.onnx")
    assert (tmp_path / "y.onnx").read_bytes() == data


def test_classes_that_are_not_seen_yet_are_not_exported_nor_are_they_by_torch(tmp_path: Path) -> None:
    mine = learner("finetune", classes=6, full_head=True)
    mine.learn(task_of([1, 4] * 8))
    done = mine.export(tmp_path / "x.onnx", pt2=tmp_path / "x.pt2")
    assert done.to_json()["pt2"] == str(tmp_path / "x.pt2")
    program = torch.export.load(io.BytesIO((tmp_path / "x.pt2").read_bytes())).module()
    torch.testing.assert_close(program(torch.from_numpy(NEW))[0], mine.scores(NEW)[:, [1, 4]], rtol=1e-4, atol=1e-4)
    classifier = device.load(tmp_path / "x.onnx")
    assert classifier.classes == [1, 4]
    assert classifier.predict(NEW) == mine.predict(NEW).tolist()
    np.testing.assert_allclose(classifier.scores(NEW), mine.scores(NEW)[:, [1, 4]], rtol=1e-4, atol=1e-4)


def test_what_differs_from_torch_is_not_written_and_the_old_file_stays(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    mine, path = taught("finetune"), tmp_path / "x.onnx"
    path.write_bytes(b"old")

    def bent(program: Any, outputs: Any) -> Any:
        model = graph.onnx_of(program, outputs)
        for weights in model.graph.initializer:
            if weights.data_type == onnx.TensorProto.FLOAT:
                weights.raw_data = (1.01 * np.frombuffer(weights.raw_data, np.float32)).tobytes()
        return model

    monkeypatch.setattr(export, "onnx_of", bent)
    with pytest.raises(DataError, match="not written, because onnxruntime differs from torch by"):
        mine.export(path, pt2=tmp_path / "x.pt2")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.onnx"]


def test_apart_is_relative_to_the_largest_of_a_picture_absolute_below_one_and_sees_no_number() -> None:
    assert export.apart([np.array([[0.1, 0.5]])], [np.array([[0.2, 0.5]])]) == pytest.approx(0.1)
    assert export.apart([np.array([[1000.0]])], [np.array([[1001.0]])]) == pytest.approx(1 / 1001)
    assert export.apart([np.array([[0.1, 1001.0]])], [np.array([[0.2, 1001.0]])]) == pytest.approx(0.1 / 1001)
    assert export.apart([np.array([[0.1], [1001.0]])], [np.array([[0.2], [1001.0]])]) == pytest.approx(0.1)
    with pytest.raises(DataError, match="differs from torch by nan"):
        export._refuse(Path("x"), export.apart([np.array([np.nan])], [np.array([1.0])]), "onnxruntime")


def test_whole_numbers_are_smaller_and_their_cost_is_measured(tmp_path: Path) -> None:
    """Classes that a network tells apart with ease; the shares in the report are counted again here."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 4
    pictures = rng.integers(0, 80, (80, 1, 8, 8)).astype(np.uint8)
    for row, label in enumerate(labels):
        pictures[row, 0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 150
    mine = protocore.Learner("finetune", (1, 8, 8), backbone="convnet", width=16, steps=60)
    mine.partial_fit(pictures, labels)
    done = mine.export(tmp_path / "x.onnx", int8=True, pictures=pictures, labels=labels)
    low = done.int8
    assert low is not None
    assert (low.calibrated, low.pictures) == (40, 40)
    assert done.bytes < 0.5 * low.float_bytes
    names = [np.array(one.predict(pictures[1::2])) for one in (device.load(tmp_path / "x.onnx"), mine)]
    assert low.agreement == (names[0] == names[1]).mean()
    assert low.accuracy == (names[0] == labels[1::2]).mean()
    assert low.float_accuracy == (names[1] == labels[1::2]).mean() > 0.9
    assert low.accuracy > 0.8
    about = device.load(tmp_path / "x.onnx").about
    assert about.fields("int8").number("agreement") == low.agreement
    nodes = [node.op_type for node in onnx.load(tmp_path / "x.onnx").graph.node]
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(nodes)


def test_pictures_to_compare_on_are_the_callers_else_those_of_the_memory_else_noise() -> None:
    mine = protocore.Learner("er", SHAPE, backbone="mlp", width=8, spc=2, steps=2)
    mine.partial_fit(noise(range(8)), ["b", "a"] * 4)
    given = export.sample_of(mine, NEW, ["a"] * 20 + ["b"] * 14 + ["z"])
    assert (given.of, len(given.images)) == ("the caller", 35)
    assert given.columns is not None
    assert given.columns.tolist() == [0] * 20 + [1] * 14 + [-1]
    memory = export.sample_of(mine, None, None)
    assert memory.of == "the memory"
    assert memory.columns is not None
    assert memory.columns.bincount().tolist() == [2, 2]
    assert export.sample_of(taught("finetune"), None, None).of == "noise"
    assert len(export.sample_of(mine, noise(range(2000)), None).images) == export.MOST_PICTURES


def test_what_cannot_be_exported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.onnx"
    with pytest.raises(UserError, match="has learned nothing yet"):
        protocore.Learner("er", SHAPE, spc=2).export(path)
    mine = taught("finetune")
    with pytest.raises(UserError, match=r"int8 needs real pictures.*pictures FOLDER"):
        mine.export(path, int8=True)
    with pytest.raises(UserError, match="is a folder"):
        mine.export(tmp_path)
    with pytest.raises(UserError, match="cannot have one name"):
        mine.export(path, pt2=path)
    with pytest.raises(UserError, match=r"there are no pictures to compare on"):
        mine.export(path, pictures=NEW[:0])
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"pip install 'protocore\[export\]'"):
            mine.export(path)
    mine.classes_[0] = (1, 2)
    with pytest.raises(UserError, match=r"the label \(1, 2\) cannot be stored"):
        mine.export(path)
    coded = learner("er", (3, 8, 8), codec="vqgan:1", replay_space="codec", backbone="mlp", width=8)
    coded.learn(task_of([0, 1] * 8, shape=(3, 8, 8)))
    with pytest.raises(UserError, match="passes through the codec"):
        coded.export(path)
    assert not list(tmp_path.iterdir())


class Odd(nn.Module):
    """Somebody's own that looks at what the pictures hold to decide what to do."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * (2 if bool(x.sum() > 5) else 1)


def test_a_module_that_cannot_be_followed_is_an_error_of_one_line(tmp_path: Path) -> None:
    mine = protocore.Learner("finetune", SHAPE, backbone=Odd(), steps=2)
    mine.learn(task_of([0, 1] * 8))
    with pytest.raises(UserError, match="this network cannot be exported"):
        mine.export(tmp_path / "x.onnx")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    mine = protocore.Learner("er", SHAPE, backbone="mlp", width=8, spc=3, steps=4)
    mine.partial_fit(noise(range(12)), ["stop", "go"] * 6)
    mine.save(tmp_path / "x.learner")
    for name in ("stop", "go"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            picture = noise([i], seed=i, shape=(3, 9, 7))[0].transpose(1, 2, 0)
            Image.fromarray(picture).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "go" / "broken.png").write_bytes(b"no picture")
    words = ["export", str(tmp_path / "x.learner"), str(tmp_path / "x.onnx")]
    assert main([*words, "--int8", "--pictures", str(tmp_path / "photos")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"left out: {tmp_path / 'photos' / 'go' / 'broken.png'}: cannot read this picture")
    assert said[1].startswith(f"{tmp_path / 'x.onnx'}: 2 classes, ")
    assert said[2].endswith("on 40 pictures of your own")
    assert said[3].endswith("% of 20 pictures")
    assert "accuracy" in said[4]
    assert said[5].startswith("classes are fixed: er predicts with outputs that were trained")
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parity"]["of"] == "the memory"
    assert (told["bytes"], told["int8"], told["skipped"]) == ((tmp_path / "x.onnx").stat().st_size, None, [])
    assert main(["export", str(tmp_path / "none.learner"), str(tmp_path / "y.onnx")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not (tmp_path / "y.onnx").exists()
