"""The file of a learner: whole or refused, whoever wrote it."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import protocore
from protocore.errors import DataError, UserError
from protocore.learn.checkpoint import _sum, read_checkpoint
from protocore.learn.learner import Learner

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "it.learner"
    images = np.random.default_rng(0).integers(0, 255, (20, *SHAPE)).astype(np.uint8)
    mine = Learner("er", SHAPE, spc=3, steps=2, backbone="mlp", width=8, threads=1)
    mine.partial_fit(images, ["a", "b"] * 10).save(path)
    return path


def changed(saved, tmp_path, header=None, tensors=None, seal: bool = True):
    """A copy with other content; sealed anew, as somebody would who knows how."""
    with safe_open(saved, framework="pt") as file:
        kept = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        told = json.loads(file.metadata()["protocore"])
    told |= header or {}
    kept |= tensors or {}
    text = json.dumps({k: v for k, v in told.items() if v != "gone"})
    path = tmp_path / "changed.learner"
    metadata = {"protocore": text, "sha256": _sum(text, kept) if seal else "0" * 64}
    save_file({k: v for k, v in kept.items() if v is not None}, path, metadata)
    return path


def test_what_was_written_is_read(saved):
    header = read_checkpoint(saved).header
    assert (header.classes, header.seen, header.tasks, header.threads) == (["a", "b"], [0, 1], 1, 1)
    assert header.settings["method"] == "er"


def test_every_flipped_bit_is_found(saved, tmp_path):
    """A bit of a weight that nobody would miss, or of the header: 60 places over the whole file."""
    whole = bytearray(saved.read_bytes())
    path = tmp_path / "flipped"
    for at in np.linspace(0, len(whole) - 1, 60).astype(int).tolist():
        whole[at] ^= 1
        path.write_bytes(whole)
        with pytest.raises(DataError):
            read_checkpoint(path)
        whole[at] ^= 1
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError):
            read_checkpoint(path)


@pytest.mark.parametrize(("header", "says"), [
    ({"format": "protocore learner 99"}, "another version"),
    ({"tasks": "x"}, "tasks"), ({"tasks": -1}, "tasks"), ({"tasks": 10**400}, "tasks"), ({"tasks": True}, "tasks"),
    ({"seen": [1, 0]}, "seen"), ({"seen": [0, 2]}, "seen"), ({"current": [0.5]}, "current"),
    ({"classes": "ab"}, "classes"), ({"classes": [["a"], "b"]}, "classes"), ({"classes": "gone"}, "classes is missing"),
    ({"image_shape": [1, 8]}, "image_shape"), ({"image_shape": [1, 8, 10**9]}, "image_shape"),
    ({"seconds": {"learn": "long"}}, "learn"), ({"settings": []}, "settings"),
    ({"settings": {"method": "er", "nonsense": 3}}, "nonsense"), ({"held": {"x": {}}}, "held"),
    ({"own_backbone": 1}, "own_backbone"), ({"extra": 3}, "extra"),
])
def test_a_header_that_was_sealed_anew_is_read_with_care(header, says, saved, tmp_path):
    with pytest.raises(UserError, match=says):
        Learner.load(changed(saved, tmp_path, header))


def test_infinity_and_a_hostile_text_are_refused_and_printable(saved, tmp_path):
    for header in ({"tasks": float("inf")}, {"format": "\x1b[2J" * 1000}, {"classes": 10**400}):
        with pytest.raises(DataError) as caught:
            Learner.load(changed(saved, tmp_path, header))
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("tensors", [
    {"optimizer/0/exp_avg": torch.zeros(3)}, {"optimizer/99/exp_avg": torch.zeros(3)},
    {"optimizer/x/step": torch.zeros(1)}, {"net/head.weight": torch.zeros(2, 5)}, {"net/strange": torch.zeros(1)},
    {"method/exemplars/labels": torch.zeros(2, 2)}, {"method/exemplars/bytes": torch.zeros(3, dtype=torch.int8)},
    {"rng": torch.zeros(3)}, {"elsewhere": torch.zeros(1)},
])
def test_tensors_of_another_kind_are_refused(tensors, saved, tmp_path):
    with pytest.raises(DataError):
        Learner.load(changed(saved, tmp_path, tensors=tensors))


def test_a_hash_that_is_not_the_content_s_is_refused(saved, tmp_path):
    with pytest.raises(DataError, match="damaged"):
        Learner.load(changed(saved, tmp_path, seal=False))


def test_a_learner_of_another_method_or_shape_does_not_take_it_up(saved):
    same = {"spc": 3, "steps": 2, "backbone": "mlp", "width": 8, "threads": 1}
    for other, says in ((Learner("derpp", SHAPE, **same), "method"), (Learner("er", (1, 8, 6), **same), "image shape")):
        with pytest.raises(UserError, match=says):
            other.restore(saved)
        assert other.classes_ == []


def test_labels_come_back_exactly_as_they_were(tmp_path):
    labels = ["\x1b[31mred", "日本", 5, 2.5, True, None]
    images = np.zeros((12, *SHAPE), np.uint8)
    mine = Learner("er", SHAPE, spc=1, steps=1).partial_fit(images, labels * 2)
    mine.save(tmp_path / "it")
    assert protocore.Learner.load(tmp_path / "it").classes_ == mine.classes_ == labels
