"""A device without torch: the same names, and a class that is added there is what torch would have made of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import protocore
from helpers import noise
from protocore import device
from protocore.data.images import FileImages
from protocore.device import container
from protocore.device.pictures import as_pictures
from protocore.errors import DataError, UserError

SHAPE = (1, 8, 8)


def coloured(labels: Any, seed: int = 0) -> np.ndarray:
    """Pictures that a class tells apart: a bright block whose place is the label, in noise."""
    labels = np.asarray(labels)
    pictures = noise(labels, seed, SHAPE) // 3
    for row, label in enumerate(labels):
        pictures[row, 0, 2 * (label // 4) : 2 * (label // 4) + 2, 2 * (label % 4) : 2 * (label % 4) + 2] += 160
    return pictures


def taught(method: str, **options: Any) -> protocore.Learner:
    """Four classes, which come in two calls."""
    mine = protocore.Learner(method, SHAPE, backbone="convnet", width=8, **options)
    for classes in ([0, 1], [2, 3]):
        labels = np.repeat(classes, 12)
        mine.partial_fit(coloured(labels, seed=classes[0]), [f"sign {label}" for label in labels])
    return mine


TEST = coloured(np.repeat(range(6), 10), seed=9)
FEW = {"ncm": {}, "slda": {}}


class Maps(nn.Module):
    """What stands for a network that was trained before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.maps = nn.Sequential(nn.Conv2d(1, 40, 3, stride=2), nn.ReLU(), nn.Flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.maps(x)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One file a kind: exporting takes a second."""
    folder = tmp_path_factory.mktemp("exported")
    paths = {}
    for name, options in {**FEW, "er": {"spc": 2, "steps": 4}}.items():
        mine = taught(name, **options)
        mine.save(folder / f"{name}.learner")
        mine.export(folder / f"{name}.onnx", pictures=TEST)
        paths[name] = folder / f"{name}.onnx"
    return paths


# -- learning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEW)
def test_a_class_added_here_is_the_one_that_torch_would_have_added(name: str, exported: dict[str, Path]) -> None:
    mine = protocore.Learner.load(exported[name].with_suffix(".learner"))
    here = device.load(exported[name])
    assert here.learns
    assert here.classes == mine.classes_
    for label, seed, count in ((4, 21, 9), (5, 22, 1), (2, 23, 7)):  # a new one, one of one picture, a known one
        pictures = coloured([label] * count, seed)
        here.learn(pictures, f"sign {label}")
        mine.partial_fit(pictures, [f"sign {label}"] * count)
    assert here.classes == mine.classes_ == [f"sign {k}" for k in range(6)]
    assert here.predict(TEST) == mine.predict(TEST).tolist()
    assert np.mean([name == f"sign {k // 10}" for k, name in enumerate(here.predict(TEST))]) > 0.6
    expected = mine.scores(TEST).numpy()
    np.testing.assert_allclose(here.scores(TEST), expected, atol=2e-3 * np.abs(expected).max())
    np.testing.assert_allclose(here.predict_proba(TEST).sum(1), 1)


def test_behind_a_frozen_network_too_but_for_the_bytes_of_its_features(tmp_path: Path) -> None:
    mine = protocore.Learner("slda", SHAPE, backbone=Maps(), freeze="all", project="60", prototype_dtype="float32")
    labels = np.repeat(range(4), 12)
    mine.partial_fit(coloured(labels), [f"sign {label}" for label in labels])
    mine.export(tmp_path / "x.onnx")
    here = device.load(tmp_path / "x.onnx")
    assert here.learns
    for label in (4, 5):
        here.learn(coloured([label] * 9, label), f"sign {label}")
        mine.partial_fit(coloured([label] * 9, label), [f"sign {label}"] * 9)
    expected = mine.scores(TEST).numpy()
    np.testing.assert_allclose(here.scores(TEST), expected, atol=0.02 * np.abs(expected).max())
    assert np.mean([a == b for a, b in zip(here.predict(TEST), mine.predict(TEST).tolist(), strict=True)]) > 0.96


@pytest.mark.parametrize("name", FEW)
def test_what_was_learned_is_saved_whole_and_found_again(name: str, exported: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "signs.onnx"
    path.write_bytes(exported[name].read_bytes())
    here = device.load(path).learn(coloured([4] * 5), "sign 4")
    saved = here.save()
    assert saved == tmp_path / "signs.classes"
    again = device.load(path)
    assert again.classes == here.classes
    assert np.array_equal(again.scores(TEST), here.scores(TEST))  # what is stored is what was used
    tensors = safetensors.torch.load(saved.read_bytes())
    mine = protocore.Learner.load(exported[name].with_suffix(".learner"))
    assert tensors["features"].dtype == torch.int8  # the same bytes a class as at home
    assert torch.equal(tensors["features"][:4], mine.memory()["prototypes/features"])
    assert tensors["counts"].tolist() == [12, 12, 12, 12, 5]
    assert path.read_bytes() == exported[name].read_bytes()
    other = "slda" if name == "ncm" else "ncm"
    (tmp_path / "other.onnx").write_bytes(exported[other].read_bytes())
    saved.rename(tmp_path / "other.classes")
    with pytest.raises(DataError, match="was learned with another export"):
        device.load(tmp_path / "other.onnx")


def test_a_head_that_was_trained_says_that_no_class_can_be_added(exported: dict[str, Path]) -> None:
    here = device.load(exported["er"])
    assert not here.learns
    for do in (lambda: here.learn(TEST[:2], "new"), here.save):
        with pytest.raises(UserError, match=r"er predicts with outputs that were trained.*exporting again"):
            do()


def test_what_cannot_be_learned_changes_nothing(exported: dict[str, Path]) -> None:
    here = device.load(exported["ncm"])
    before, classes = here.scores(TEST), list(here.classes)
    for pictures, name, said in ((TEST[:0], "new", "there are no pictures of 'new'"), (TEST[:2], (1, 2), "is named by"),
                                 (TEST[:2, :, :4], "new", r"must have shape \(N, 1, 8, 8\)"),
                                 (TEST[0], "new", r"one picture is images\[None\]"),
                                 (TEST.transpose(0, 2, 3, 1), "new", "channels come first"),
                                 (TEST[:2] / 255, "new", "must be uint8")):
        with pytest.raises(UserError, match=said):
            here.learn(pictures, name)  # type: ignore[arg-type]
    assert here.classes == classes
    assert np.array_equal(here.scores(TEST), before)
    assert here.predict(TEST[:0]) == []


WITHOUT_TORCH = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "safetensors", "onnx", "onnxscript", "sklearn", "PIL"):
            raise ImportError(f"there is no {name} here")
sys.meta_path.insert(0, Missing())
import numpy as np
from protocore import device
here = device.load(sys.argv[1], threads=1)
pictures = np.load(sys.argv[2])
before = here.predict(pictures)
here.learn(pictures[40:50], "sign 4").save()
again = device.load(sys.argv[1], threads=1)
try:
    device.load(sys.argv[3])
except Exception as error:
    said = str(error)
print(json.dumps([before, again.classes, again.predict(pictures), "torch" in sys.modules, said]))
"""


def test_without_torch_the_names_are_the_same_and_a_class_is_added(exported: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "signs.onnx"
    path.write_bytes(exported["slda"].read_bytes())
    np.save(tmp_path / "pictures.npy", TEST)
    words = [sys.executable, "-c", WITHOUT_TORCH, path, tmp_path / "pictures.npy", tmp_path / "none.onnx"]
    done = subprocess.run(words, capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": str(Path(protocore.__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    before, classes, after, torch_there, said = json.loads(done.stdout)
    mine = protocore.Learner.load(exported["slda"].with_suffix(".learner"))
    assert before == mine.predict(TEST).tolist()
    mine.partial_fit(TEST[40:50], ["sign 4"] * 10)
    assert classes == mine.classes_
    assert after == mine.predict(TEST).tolist()
    assert not torch_there
    assert said.endswith("there is no such file")


# -- files -----------------------------------------------------------------------------------------------------


def test_a_damaged_file_is_refused_and_says_so(exported: dict[str, Path], tmp_path: Path) -> None:
    data = exported["ncm"].read_bytes()
    rng = np.random.default_rng(0)
    for at in (0, len(data) - 1, *rng.integers(0, len(data), 30).tolist()):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(DataError, match=r"x\.onnx: (damaged|not a learner)"):
            device.Classifier(bytes(damaged), Path("x.onnx"))
    for part in (b"", data[:50], data[:-1], data + b"\0"):
        with pytest.raises(DataError, match=r"not a learner|damaged"):
            device.Classifier(part, Path("x.onnx"))
    with pytest.raises(DataError, match="cannot run it"):  # sealed, but no graph
        device.Classifier(container.sealed(b"no graph"), tmp_path / "x.onnx")


ARRAYS = {"features": np.arange(12, dtype=np.int8).reshape(3, 4), "steps": np.ones(3, np.float16),
          "counts": np.array([1, 2, 3], np.int32), "nothing": np.empty((0, 2))}


def test_arrays_come_back_and_safetensors_reads_them() -> None:
    data = container.packed(ARRAYS, {"classes": ["é", 1, None]})
    arrays, about = container.unpacked(data, "x")
    assert about == {"classes": ["é", 1, None]}
    for found in (arrays, {k: v.numpy() for k, v in safetensors.torch.load(data).items()}):
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_arrays_of_any_origin_are_read_or_refused(data: st.DataObject) -> None:
    good = container.packed(ARRAYS, {"classes": [1]})
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:at] + data.draw(st.binary(max_size=9)) + good[at + data.draw(st.integers(0, 9)) :]
    read = None
    with contextlib.suppress(DataError):
        read, _ = container.unpacked(damaged, "x.classes")
    if read is not None:  # as it was, or with other white space around its header
        assert {k: v.tolist() for k, v in read.items()} == {k: v.tolist() for k, v in ARRAYS.items()}


@pytest.mark.parametrize(("change", "said"), [
    ({"features": np.ones((3, 4), np.int8)}, "features has shape"),
    ({"counts": np.array([1, 0, 3, 4], np.int32)}, "no pictures"),
    ({"steps": np.full(4, np.nan, np.float16)}, "not finite"),
    ({"strange": np.ones(1)}, "strange"),
    ({"counts": None}, "counts"), ({"scales": np.ones(1, np.float32)}, "scales are missing"),
])
def test_what_is_known_of_classes_must_fit_the_graph(change: dict[str, Any], said: str, exported: dict[str, Path],
                                                     tmp_path: Path) -> None:
    here = device.load(exported["ncm"])
    arrays, about = container.unpacked(here.learnt(), "x")
    changed = {k: v for k, v in (dict(arrays) | change).items() if v is not None}
    (tmp_path / "x.classes").write_bytes(container.packed(changed, about))
    with pytest.raises(DataError, match=rf"x\.classes: damaged.*{said}"):
        here.take(tmp_path / "x.classes")
    (tmp_path / "x.classes").write_bytes(container.packed(arrays, about | {"dtype": "int4"}))
    with pytest.raises(DataError, match="settings are not known"):
        here.take(tmp_path / "x.classes")
    for strange in ({"format": "protocore classes 99"}, {"kind": "tree"}):
        (tmp_path / "x.classes").write_bytes(container.packed(arrays, about | strange))
        with pytest.raises(DataError, match="made by another version"):
            here.take(tmp_path / "x.classes")
    assert here.classes == about["classes"]


# -- pictures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "mode", "turn"), [
    ((40, 30), "RGB", None), ((17, 64), "L", None), ((32, 32), "RGBA", None), ((50, 20), "P", None),
    ((33, 21), "CMYK", None), *(((40, 30), "RGB", turn) for turn in range(2, 9)),
])
def test_pictures_are_made_to_fit_as_at_home(size: tuple[int, int], mode: str, turn: int | None,
                                             tmp_path: Path) -> None:
    picture = Image.fromarray(noise([0], 3, (3, size[1], size[0]))[0].transpose(1, 2, 0)).convert(mode)
    notes = Image.Exif()
    notes[274] = turn or 1
    path = tmp_path / ("x.jpg" if mode == "CMYK" or turn else "x.png")
    picture.save(path, exif=notes)
    home = FileImages([path], 16, upright=True).take(np.array([0]))
    assert np.array_equal(as_pictures(path, (3, 16, 16)), home)
    assert np.array_equal(as_pictures([str(path)] * 2, (3, 16, 16))[1:], home)
    with Image.open(path) as opened:
        assert np.array_equal(as_pictures(opened, (3, 16, 16)), home)


def test_pictures_need_not_become_squares(tmp_path: Path) -> None:
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 255
    for shape, inside in (((3, 20, 20), 1.0), ((1, 10, 30), 1 / 3), ((3, 10, 20), 1 / 2)):
        found = as_pictures(Image.fromarray(wide), shape)
        assert found.shape == (1, *shape)
        assert found.mean() / 255 == pytest.approx(inside, abs=0.06)


def test_a_picture_that_cannot_be_read_says_which(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"x\.png: cannot read this picture"):
        as_pictures(tmp_path / "x.png", (3, 8, 8))
    Image.fromarray(np.zeros((2, 200), np.uint8)).save(tmp_path / "thin.png")
    with pytest.raises(DataError, match=r"thin\.png: .*too narrow"):
        as_pictures([tmp_path / "thin.png"], (3, 8, 8))
    with pytest.raises(UserError, match="takes 4 channels"):
        as_pictures(Image.new("RGB", (8, 8)), (4, 8, 8))
    with pytest.raises(UserError, match=r"cannot be made to fit: .*too narrow"):
        as_pictures(Image.new("RGB", (200, 2)), (3, 8, 8))
    with pytest.raises(UserError, match="must be a path"):
        as_pictures([3], (3, 8, 8))
