"""A learner as people construct and use it: labels of any kind, names matched, files without data, Python's words."""

import doctest
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import protocore
from protocore import api
from protocore.data.images import ArrayImages
from protocore.data.stream import Task
from protocore.errors import DataError, UserError
from protocore.learn import learner
from protocore.learn.arrays import as_array, as_labels, checked_images
from protocore.learn.words import in_python
from protocore.methods.er import EROptions

SHAPE = (1, 8, 8)


def pictures(*levels: int, each: int = 12) -> np.ndarray:
    """Pictures that are bright where their level says, with some noise: classes that are easily told apart."""
    chance = np.random.default_rng(sum(levels) + len(levels))
    made = chance.integers(0, 30, (len(levels) * each, *SHAPE))
    for k, level in enumerate(levels):
        made[k * each : (k + 1) * each, :, level] += 200
    return made.astype(np.uint8)


def named(*names, each: int = 12) -> list:
    return [name for name in names for _ in range(each)]


def small(method: str = "er", **settings) -> protocore.Learner:
    return protocore.Learner(method, image_shape=SHAPE, **{"spc": 4, "steps": 30, "lr": 0.005, "backbone": "mlp",
                                                          "threads": 1} | settings)


@pytest.mark.parametrize(("module", "least"), [(learner, 15), (api, 5)])
def test_examples_in_docstrings_run(module, least, tmp_path, monkeypatch):
    """Each begins with the learner and the pictures of the first example."""
    monkeypatch.chdir(tmp_path)
    shown = np.zeros((40, 1, 8, 8), np.uint8)
    shown[20:, :, 4:] = 255

    class Fresh(doctest.DocTestRunner):
        def run(self, test, *rest, **more):
            if module is learner:
                mine = protocore.Learner("protocore", image_shape=SHAPE, budget="4KB", steps=40)
                test.globs |= {"pictures": shown, "learner": mine.partial_fit(shown, ["sky"] * 20 + ["sea"] * 20)}
            return super().run(test, *rest, **more)

    runner = Fresh()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs=dict(vars(module))):
        if test.examples:
            runner.run(test)
    assert runner.tries >= least
    assert runner.failures == 0


def test_a_learner_of_names_in_any_order():
    mine = small()
    mine.partial_fit(pictures(5, 2), named("stop", "give way"))
    assert mine.classes_ == ["give way", "stop"]
    mine.partial_fit(pictures(2, 7), named("give way", "no entry"))  # a known class beside a new one
    assert mine.classes_ == ["give way", "stop", "no entry"]
    found = mine.predict(pictures(7, 5, 2, each=5))
    assert found.tolist() == named("no entry", "stop", "give way", each=5)
    assert mine.score(pictures(7, 5, each=5), named("no entry", "stop", each=5)) == 1.0
    assert mine.score(pictures(7, 5, each=5), named("no entry", "give way", each=5)) == 0.5
    assert mine.tasks_ == 2


@pytest.mark.parametrize("labels", [(5, 7), ((1, "a"), (2, "b")), (True, None), ("x", 3), (2.5, -1)])
def test_labels_of_any_hashable_kind(labels):
    mine = small().partial_fit(pictures(1, 6), named(*labels))
    assert sorted(map(str, mine.classes_)) == sorted(map(str, labels))
    assert mine.predict(pictures(6, 1, each=3)).tolist() == named(*reversed(labels), each=3)


def test_numpy_and_torch_numbers_are_the_numbers_that_they_hold():
    mine = small(steps=2)
    mine.partial_fit(pictures(1, 6), np.array(named(5, 7)))
    mine.partial_fit(torch.from_numpy(pictures(1, 3)), torch.tensor(named(5, 9)))
    mine.partial_fit(pictures(1, 3).astype(np.float32) / 255, [np.int64(label) for label in named(5, 9)])
    assert mine.classes_ == [5, 7, 9]
    doubles = pictures(1, 6, 3, each=3) / 255
    assert mine.predict(doubles).tolist() == mine.predict(pictures(1, 6, 3, each=3)).tolist()
    assert mine.predict(doubles[::-1]).tolist() == mine.predict(doubles).tolist()[::-1]  # read backwards
    assert all(type(label) is int for label in mine.classes_)
    assert mine.predict(pictures(1, each=2)).dtype.kind == "i"


def test_probabilities_sum_to_one_in_the_order_of_the_classes():
    mine = small("icarl").partial_fit(pictures(1, 6), named("b", "a")).partial_fit(pictures(3), named("c"))
    share = mine.predict_proba(pictures(1, 6, 3, each=4))
    assert share.shape == (12, 3)
    assert np.allclose(share.sum(1), 1, atol=1e-12)
    assert [mine.classes_[k] for k in share.argmax(1)] == mine.predict(pictures(1, 6, 3, each=4)).tolist()


def test_pictures_of_any_kind_and_size_in_one_list(tmp_path):
    """A file held sideways, Pillow's, a camera's array, a tensor of the right shape: all are the same picture."""
    shown = np.zeros((20, 12, 3), np.uint8)
    shown[:10, :, 0], shown[10:, :, 1] = 220, 120
    upright = Image.fromarray(shown)
    notes = Image.Exif()
    notes[274] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "sideways.png", exif=notes)
    mine = protocore.Learner("finetune", (3, 6, 6), steps=1, threads=1)
    whole = checked_images([tmp_path / "sideways.png", str(tmp_path / "sideways.png"), upright, shown,
                            np.dstack([shown, np.full((20, 12), 255, np.uint8)])], (3, 6, 6))
    assert whole.dtype == torch.uint8
    assert all(torch.equal(one, whole[0]) for one in whole)
    assert whole[0, :, 0, 0].tolist() == [220, 0, 0]
    assert whole[0, :, 5, 5].tolist() == [0, 120, 0]
    right = [whole[0], whole[0].numpy(), upright]
    assert torch.equal(checked_images(right, (3, 6, 6))[0], checked_images(right, (3, 6, 6))[2])
    mine.partial_fit([upright, shown, shown[::-1], shown[::-1, :, 0]], ["a", "a", "b", "b"])
    assert len(mine.predict([upright, tmp_path / "sideways.png"])) == 2
    assert mine.predict_proba([]).shape == (0, 2)
    floats = [np.zeros((3, 6, 6)), np.ones((3, 6, 6))]
    assert torch.equal(checked_images(floats, (3, 6, 6)), checked_images(np.stack(floats), (3, 6, 6)))
    assert checked_images([shown], (1, 10, 5)).shape == (1, 1, 10, 5)  # not square: covered, then cut


@pytest.mark.parametrize(("images", "says"), [
    (["nowhere.jpg"], r"nowhere\.jpg"), ([np.zeros((5, 5, 2), np.uint8)], r"uint8 \(5, 5, 2\)"),
    ([np.zeros((5, 5))], r"uint8.*float64 \(5, 5\)"), ("a.jpg", "list of pictures"),
    ([Image.new("L", (1, 400))], "picture 0.*narrow"), (np.zeros((2, 3, 5, 5), np.uint8), "as a list of pictures")])
def test_a_list_that_holds_something_else_says_what(images, says):
    with pytest.raises(UserError, match=says):
        checked_images(images, (3, 6, 6))


def test_another_stream_s_classes_are_matched_by_name_and_not_taken_for_old_ones():
    """A learner of signs that is given other signs must not learn them as its first two classes."""
    mine = small()
    for names, levels in ((("a", "b", "c"), (0, 1, 2)), (("d", "b"), (4, 1))):
        mine.learn(Task.from_arrays(pictures(*levels), np.repeat(range(len(names)), 12), names))
    assert mine.classes_ == ["a", "b", "c", "d"]
    assert mine.method.seen == [0, 1, 2, 3]
    assert mine.predict(pictures(4, 1, each=4)).tolist() == named("d", "b", each=4)


def test_a_task_of_numbers_alone_is_numbered_already():
    mine = small()
    mine.learn(Task(ArrayImages(pictures(0, 5)), np.repeat([0, 3], 12)))
    assert mine.classes_ == [0, 1, 2, 3]
    assert mine.method.seen == [0, 3]


# -- files -------------------------------------------------------------------------------------------------------


def test_saved_in_one_process_and_gone_on_with_in_another(tmp_path):
    file = tmp_path / "signs.learner"
    mine = small("protocore", budget="3KB", spc=None).partial_fit(pictures(5, 2), named("stop", "give way"))
    mine.save(file)
    script = f"""
import numpy as np, sys, protocore
sys.path.insert(0, {str(__file__.rpartition('/')[0])!r})
from test_people import pictures, named
mine = protocore.Learner.load({str(file)!r})
mine.partial_fit(pictures(7), named("no entry"))
mine.save({str(file)!r})
print(mine.classes_, mine.predict(pictures(7, 5, 2, each=1)).tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['give way', 'stop', 'no entry'] ['no entry', 'stop', 'give way']\n"
    mine.partial_fit(pictures(7), named("no entry"))
    again = protocore.Learner.load(file)
    assert all(torch.equal(v, again.memory()[k]) for k, v in mine.memory().items())  # and bit for bit as in one go
    assert torch.equal(again.scores(pictures(3)), mine.scores(pictures(3)))
    assert again.settings == mine.settings
    assert again.ledger() == mine.ledger()


@pytest.mark.parametrize("method", ["icarl", "fecam", "ldc", "derpp", "ewc"])
def test_every_kind_of_state_comes_back(method, tmp_path):
    mine = small(method).partial_fit(pictures(5, 2), named("a", "b")).partial_fit(pictures(0, 7), named("c", "d"))
    mine.save(tmp_path / "it")
    again = protocore.Learner.load(tmp_path / "it")
    assert torch.equal(again.scores(pictures(0, 5, 2)), mine.scores(pictures(0, 5, 2)))
    for one in (mine, again):
        torch.manual_seed(0)
        one.partial_fit(pictures(3), named("e"))
    assert torch.equal(again.scores(pictures(0, 3)), mine.scores(pictures(0, 3)))


class Own(nn.Module):
    """A user's network: its features are the means of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mean(3).flatten(1)).relu()


def test_a_backbone_of_ones_own(tmp_path):
    mine = small(backbone=Own(), steps=80, lr=0.02).partial_fit(pictures(5, 2), named("a", "b"))
    assert mine.net.dim == 6
    assert mine.score(pictures(5, 2, each=5), named("a", "b", each=5)) == 1.0
    mine.save(tmp_path / "it")
    with pytest.raises(UserError, match="backbone="):
        protocore.Learner.load(tmp_path / "it")
    again = protocore.Learner.load(tmp_path / "it", backbone=Own())
    assert torch.equal(again.scores(pictures(5)), mine.scores(pictures(5)))


def test_a_label_that_no_file_can_hold_is_refused_before_anything_is_written(tmp_path):
    mine = small(steps=1).partial_fit(pictures(5), [(1, 2)] * 12)
    with pytest.raises(UserError, match=r"\(1, 2\).*cannot be stored"):
        mine.save(tmp_path / "it")
    with pytest.raises(UserError, match="folder"):
        mine.save(tmp_path)
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize("label", [5, 0, None])
def test_a_pack_holds_names_that_are_texts(label, tmp_path):
    """As a text, 5 would come back as another class than the 5 that is learned next."""
    mine = small(steps=1).partial_fit(pictures(5), [label] * 12)
    with pytest.raises(UserError, match="texts"):
        mine.save_pack(tmp_path / "it")


def test_a_file_of_other_settings_is_not_taken_up(tmp_path):
    small(steps=1, spc=2).partial_fit(pictures(5), ["a"] * 12).save(tmp_path / "it")
    with pytest.raises(UserError, match="spc 2, this one 9"):
        small(steps=1, spc=9).restore(str(tmp_path / "it"))


def test_a_shipped_memory_is_taken_up_by_a_new_learner_of_the_same_kind(tmp_path):
    mine = small().partial_fit(pictures(5, 2), named("stop", "give way"))
    mine.save_pack(tmp_path / "memory.pack")
    again = small().load_pack(tmp_path / "memory.pack")
    assert again.classes_ == ["give way", "stop"]
    assert all(torch.equal(v, again.memory()[k]) for k, v in mine.memory().items())
    again.partial_fit(pictures(7), named("no entry"))  # replays what was shipped
    assert again.classes_ == ["give way", "stop", "no entry"]
    assert again.score(pictures(5, 2, 7, each=4), named("stop", "give way", "no entry", each=4)) > 0.6
    for other, says in ((small("derpp"), "method"), (small(codec="webp"), "pixels.*webp"), (mine, "already")):
        with pytest.raises(UserError, match=says):
            other.load_pack(tmp_path / "memory.pack")
    with pytest.raises(DataError):
        protocore.Learner("er", image_shape=(1, 8, 6)).load_pack(tmp_path / "memory.pack")


# -- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "meant"), [
    ("--budget 3700 cannot hold; give --budget 3716, or", "budget=3700 cannot hold; give budget=3716, or"),
    ("--budget 99,999 bytes", "budget=99,999 bytes"),
    ("leave out --steps", "leave out steps"),
    ("add --draw balanced --current masked", "add draw=balanced current=masked"),
    ("--codec 'webp:x': what", "codec='webp:x': what"),
    ("give --capacity N or --budget BYTES.", "give capacity=N or budget=BYTES."),
    ("--online sees each sample once", "online=True sees each sample once"),
    ("--no-full-head", "full_head=False"),
    ("unknown setting --bugdet (from", "unknown setting bugdet (from"),
])
def test_flags_become_arguments(said, meant):
    assert in_python(said, EROptions) == meant


@pytest.mark.parametrize("wrong", [
    {"budget": "nothing"}, {"spc": -1}, {"codec": "nonsense"}, {"width": 10**30}, {"backbone": "nonsense"},
    {"nonsense": 3}, {"lr": float("nan")}, {"full_head": True}, {"schedule": "nonsense"}, {"augment": "nonsense"},
])
def test_errors_of_a_learner_never_speak_of_flags(wrong):
    with pytest.raises(UserError) as caught:
        small(**wrong).partial_fit(pictures(5, 2), named("a", "b"))
    assert "--" not in str(caught.value)


def test_a_budget_that_is_too_small_is_told_in_the_words_of_python():
    with pytest.raises(UserError, match=r"budget=\d") as caught:
        small(spc=None, budget=300).partial_fit(pictures(5, 2), named("stop", "give way"))
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(("images", "labels", "says"), [
    (np.zeros((3, 8, 8), np.uint8), ["a"] * 3, "shape"), (np.zeros((3, *SHAPE), np.int64), ["a"] * 3, "uint8"),
    (np.full((3, *SHAPE), 255.0), ["a"] * 3, "between 0 and 1"), (np.full((3, *SHAPE), np.nan), ["a"] * 3, "NaN"),
    (None, ["a"] * 3, "None"), ("cat.jpg", ["a"] * 3, "cat.jpg"), (np.zeros((3, *SHAPE), object), ["a"] * 3, "array"),
    (np.zeros((3, 8, 8, 1), np.uint8), ["a"] * 3, "transpose"),
    (np.zeros(SHAPE, np.uint8), ["a"] * 3, r"images\[None\]"),
    (np.zeros((3, *SHAPE), np.uint8), None, "None"),
    (np.zeros((3, *SHAPE), np.uint8), ["a", "b"], "3 pictures and 2 labels"),
    (np.zeros((3, *SHAPE), np.uint8), "abc", "list"),
    (np.zeros((3, *SHAPE), np.uint8), [["a"], "b", "c"], "hashable"),
    (np.zeros((3, *SHAPE), np.uint8), [float("nan"), "b", "c"], "nan"),
    (np.zeros((0, *SHAPE), np.uint8), [], "no images"),
])
def test_pictures_and_labels_that_are_none(images, labels, says):
    with pytest.raises(UserError, match=says):
        small().partial_fit(images, labels)


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 0), (1, 8.5, 8), ("a", 1, 1)])
def test_image_shapes_that_are_none(shape):
    with pytest.raises(UserError, match="image_shape"):
        protocore.Learner("er", image_shape=shape)


def test_no_benchmark_means_no_recipe():
    mine = protocore.Learner("er", (3, 32, 32))
    assert (mine.settings.epochs, mine.settings.augment) == (6, "none")
    assert torch.equal(mine.net.mean.flatten(), torch.zeros(3))
    published = protocore.Learner("er", (3, 32, 32), preset="paper")
    assert (published.settings.optimizer, published.settings.lr) == ("sgd", 0.1)


def test_a_stream_brings_its_recipe_and_its_statistics():
    stream = protocore.stream("digits", tasks=2)
    mine = protocore.learner("er", stream, steps=2, threads=1)
    assert mine.settings.augment == "crop1"
    assert [round(float(v), 2) for v in (mine.net.mean, mine.net.std)] == [0.3, 0.37]
    for task in stream:
        mine.learn(task)
    assert mine.classes_ == ["0", "1", "2", "3"]


def test_a_learner_says_what_it_is():
    mine = small(steps=1)
    assert repr(mine).startswith("Learner('er', image_shape=(1, 8, 8), spc=4): 0 classes, ")
    mine.partial_fit(pictures(5, 2), named("a", "b"))
    assert repr(mine).endswith(f": 2 classes, {mine.ledger().total:,} bytes kept")


def test_arrays_of_labels():
    assert as_array(["a", "b"]).dtype.kind == "U"
    assert as_array([1, 2]).dtype.kind == "i"
    assert as_array([(1, 2), (3, 4)]).tolist() == [(1, 2), (3, 4)]
    assert as_array([True, False]).tolist() == [True, False]
    assert as_labels(np.array([1.5, 2.0]), 2) == [1.5, 2.0]
