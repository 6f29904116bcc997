"""A class is forgotten by every method: its bytes are gone from the file, the others answer as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from helpers import learner, noise
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.forgetting import LEAST_BYTES, LEAST_VALUES, _traces
from protocore.learn.learner import Learner
from protocore.learn.unlearning import Unlearning
from protocore.methods import METHODS, Batch

SHORT: dict[str, dict[str, Any]] = {
    "csrel": {"ref_epochs": 1, "selection_steps": 2, "proxy_steps": 2}, "pbcs": {"outer_steps": 3, "inner_steps": 3},
    "onpro": {"variants": 1}, "protocore": {"spc": 2}, "ranpac": {"project": "20"},
}
NAMES = ("aardvark", "badger", "caracal", "dormouse", "echidna", "flamingo", "gibbon")
TASKS = ((0, 1), (2, 3), (4,))
KINDS = ("finetune", "er", "derpp", "icarl", "csrel", "ewc", "fecam", "pass", "ldc", "onpro", "protocore")
NEW = torch.from_numpy(noise(range(9), seed=99))
CASES = [
    *((name, {}) for name in sorted(METHODS)), ("fecam", {"covariance": "shared"}),
    ("er", {"spc": None, "capacity": 12}),
    ("er", {"codec": "webp:10"}), ("derpp", {"full_head": True}), ("derpp", {"unseen": "mask"}),
    ("csrel", {"balance": "off", "spc": None, "capacity": 12}), ("protocore", {"real": 2}),
    ("protocore", {"exemplars": "synthetic", "codec": "vqgan:1", "blend": 2, "condense_steps": 3, "record": True}),
    ("er", {"head": "cosine", "optimizer": "adamw"}), ("pass", {"radius": "every"}), ("icarl", {"full_head": True}),
    ("er", {"freeze": "all"}), ("fecam", {"freeze": "all"}), ("protocore", {"freeze": "all"}),
    ("protocore", {"neighbours": 0.0}), ("slda", {"shrinkage": 0.3}), ("slda", {"project": "5"}),
]


def task_of(*classes: int, seed: int = 0) -> Task:
    labels = [c for c in classes for _ in range(8)]
    return Task.from_arrays(noise(labels, seed), [NAMES[c] for c in labels])


def taught(name: str, tasks: Any = TASKS, **flags: Any) -> Learner:
    mine = learner(name, **SHORT.get(name, {}) | flags, classes=7 if flags.get("full_head") else None)
    for number, classes in enumerate(tasks):
        mine.learn(task_of(*classes, seed=number))
    return mine


def among_all(name: str, flags: dict[str, Any]) -> bool:
    """Whether what a method says of one class hangs on which others there are: a vote, a centre, a regression, a
    shrinkage that counts all samples. What it says then is held against a learner that reads the file."""
    return name in ("ncm", "ranpac") or (name == "slda" and "shrinkage" not in flags) or (
        name == "protocore" and flags.get("neighbours") != 0.0)


def rows_of(state: dict[str, torch.Tensor]) -> dict[str, list[tuple[int, bytes]]]:
    """(class, bytes) of every row of what is kept by class, in its order."""
    found = {}
    for name, rows in state.items():
        labels = state.get(f"{name.rpartition('/')[0]}/labels")
        if labels is not None and len(labels) == len(rows) and not name.endswith(("labels", "logits")):
            found[name] = [(int(c), row.numpy().tobytes()) for c, row in zip(labels, rows, strict=True)]
    return found


@pytest.mark.parametrize(("name", "flags"), CASES, ids=str)
def test_the_others_answer_as_before_and_nothing_of_it_is_in_the_file(name: str, flags: dict[str, Any],
                                                                      tmp_path: Path) -> None:
    mine = taught(name, **flags)
    before, kept, gone = mine.scores(NEW), rows_of(mine.memory()), 2
    mine.save(tmp_path / "before.learner")
    traces = _traces(mine, gone)
    old = (tmp_path / "before.learner").read_bytes()
    assert all(trace in old for trace in traces)
    assert traces
    own = {row for rows in kept.values() for c, row in rows if c == gone}
    assert {row for row in own if len(row) >= LEAST_BYTES and len(set(row)) >= LEAST_VALUES} <= set(traces)
    certificate = mine.forget(NAMES[gone])
    assert mine.classes_ == [NAMES[c] for c in (0, 1, 3, 4)]
    assert mine.method.seen == [0, 1, 2, 3]
    after = mine.scores(NEW)
    if not among_all(name, flags):
        torch.testing.assert_close(after.log_softmax(1), before[:, [0, 1, 3, 4]].log_softmax(1), rtol=1e-4, atol=1e-4)
    rest = {k: [(c - (c > gone), row) for c, row in rows if c != gone] for k, rows in kept.items()}
    assert rows_of(mine.memory()) == {k: rows for k, rows in rest.items() if rows}
    mine.save(tmp_path / "after.learner")
    new = (tmp_path / "after.learner").read_bytes()
    assert [trace for trace in traces if trace in new] == []
    assert NAMES[gone].encode() in old
    assert NAMES[gone].encode() not in new
    assert (certificate.searched, certificate.found) == (len(traces), 0)
    assert certificate.classes_left == 4
    loaded = Learner.load(tmp_path / "after.learner")
    torch.testing.assert_close(loaded.scores(NEW), after)
    loaded.learn(task_of(2, 5, seed=7))  # it may come again, as a new class
    assert loaded.classes_ == [NAMES[c] for c in (0, 1, 3, 4, 2, 5)]
    assert loaded.scores(NEW).isfinite().all()


@pytest.mark.parametrize(("name", "flags"), [case for case in CASES if case[0] in KINDS], ids=str)
def test_the_last_one_the_only_one_of_a_task_and_all_of_them(name: str, flags: dict[str, Any], tmp_path: Path) -> None:
    mine = taught(name, **flags)
    first = {k: v.clone() for k, v in mine.net.state_dict().items()}
    for gone, left in ((4, (0, 1, 2, 3)), (0, (1, 2, 3)), (3, (1, 2)), (1, (2,)), (2, ())):
        mine.forget(NAMES[gone])
        assert mine.classes_ == [NAMES[c] for c in left]
        if left:
            assert set(mine.predict(NEW).tolist()) <= {NAMES[c] for c in left}
    assert not any(bool(values.any()) for values in mine.method.state().values())
    assert mine.method.seen == mine.method.current == mine.method.first_classes == []
    assert mine.net.classes == 0
    weights = [k for k in first if k.endswith("weight") and not k.startswith("head")]
    assert not weights or any(not torch.equal(first[k], mine.net.state_dict()[k]) for k in weights)  # begun anew
    assert bool(weights) == (flags.get("freeze") != "all")
    with pytest.raises(UserError, match="learned nothing"):
        mine.predict(NEW)
    mine.save(tmp_path / "empty.learner")
    again = Learner.load(tmp_path / "empty.learner")
    assert not any(name.encode() in (tmp_path / "empty.learner").read_bytes() for name in NAMES)
    again.learn(task_of(6, 0, seed=5))
    assert again.classes_ == [NAMES[0], NAMES[6]]
    assert again.scores(NEW).isfinite().all()


def test_what_stays_mixed_is_said_and_what_can_be_subtracted_is() -> None:
    mine = taught("er", spc=None, capacity=12)
    held = mine.method.stores()[0].counts()
    assert int(mine.memory()["exemplars/seen"]) == 40
    words = mine.forget(NAMES[1]).mixed
    assert int(mine.memory()["exemplars/seen"]) == round(40 * (12 - held[1]) / 12)
    assert any("exemplars/seen" in w for w in words)
    assert any("weights of the network" in w for w in words)
    shared = taught("fecam", covariance="shared")
    before = {k: v.clone() for k, v in shared.memory().items() if "covariance" in k}
    assert any("shared covariance" in w for w in shared.forget(NAMES[0]).mixed)
    assert before
    assert all(torch.equal(v, shared.memory()[k]) for k, v in before.items())
    own = taught("fecam")
    assert not any("covariance" in w for w in own.forget(NAMES[0]).mixed)
    assert any("fisher" in w for w in taught("ewc").forget(NAMES[0]).mixed)
    alone = taught("er", [(0,)])
    assert alone.forget(NAMES[0]).mixed == ()


def test_a_network_of_ones_own_stays_and_is_told() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU())
    mine = Learner("er", (1, 8, 8), backbone=module, spc=2, steps=3, threads=1)
    mine.partial_fit(noise([0] * 4, shape=(1, 8, 8)), ["cat"] * 4)
    before = module[1].weight.clone()
    certificate = mine.forget("cat")
    assert torch.equal(module[1].weight, before)
    assert any("weights of the network" in words for words in certificate.mixed)
    assert mine.net.classes == 0
    mine.partial_fit(noise([0, 1] * 4, shape=(1, 8, 8)), ["dog", "cow"] * 4)
    assert mine.classes_ == ["cow", "dog"]


def test_logits_lose_the_column_of_the_class() -> None:
    mine = taught("derpp")
    store = mine.method.stores()[0]
    before, labels = store.column("logits").clone(), store.labels.clone()
    mine.forget(NAMES[1])
    expected = before[labels != 1][:, [0, 2, 3, 4]]
    assert torch.equal(store.column("logits").nan_to_num(99.0), expected.nan_to_num(99.0))


def test_the_optimisers_state_goes_along_and_online_learning_goes_on() -> None:
    mine = learner("er", online=True, online_window=12)
    for number, classes in enumerate(([0, 1], [2, 3])):
        mine.learn_window(Task.from_arrays(noise(classes * 6, number), [NAMES[c] for c in classes * 6]))
    assert mine.optimizer is not None
    mine.forget(NAMES[0])
    assert mine.optimizer is None
    mine.learn_window(Task.from_arrays(noise([1, 4] * 6, 5), [NAMES[c] for c in [1, 4] * 6]))
    assert mine.classes_ == [NAMES[c] for c in (1, 2, 3, 4)]
    assert mine.scores(NEW).isfinite().all()


def test_with_its_last_class_what_is_trained_beside_the_network_begins_anew() -> None:
    mine = taught("onpro", [(0,)])
    assert mine.method.extra is not None
    before = mine.method.extra.weight.detach().clone()
    mine.forget(NAMES[0])
    assert not torch.allclose(mine.method.extra.weight, before, atol=1e-3)


def test_what_was_held_for_the_last_task_goes_with_any_class() -> None:
    mine = taught("protocore")
    assert "table" in mine.method.scratch()
    mine.forget(NAMES[0])
    assert mine.method.scratch() == {}


def test_a_method_that_does_not_say_how_is_refused_before_anything_is_changed() -> None:
    mine = taught("er")
    before = {k: v.clone() for k, v in mine.memory().items()}
    mine.method.extra_number = 3.0  # type: ignore[attr-defined]
    mine.method.keep("extra_number")
    with pytest.raises(UserError, match=r"the method er cannot forget a class: its extra_number does not say"):
        mine.forget(NAMES[0])
    assert mine.classes_ == list(NAMES[:5])
    assert all(torch.equal(v, mine.memory()[k]) for k, v in before.items())


def test_a_class_that_is_not_known() -> None:
    mine = taught("er")
    with pytest.raises(UserError, match=r"no class 'badgr'; did you mean badger\? \(known: aardvark, badger,"):
        mine.forget("badgr")


def test_where_nothing_can_be_unlearned() -> None:
    for method, how, words in (("finetune", {}, "finetune keeps no exemplars of the other classes"),
                               ("er", {"freeze": "all", "spc": 2}, "was not trained on its pictures"),
                               ("er", {"backbone": torch.nn.Flatten(), "spc": 2}, "is your own is not at hand")):
        mine = python_speaking(method, **how)
        with pytest.raises(UserError, match=f"^unlearn_steps: .*{words}.*leave unlearn_steps out"):
            mine.forget(0, unlearn_steps=5)
        assert mine.classes_ == [0, 1]


def python_speaking(method: str, **settings: Any) -> Learner:
    named = {} if "backbone" in settings else {"backbone": "mlp", "width": 8}
    mine = Learner(method, (1, 8, 8), **named, steps=2, threads=1, **settings)
    return mine.partial_fit(noise([0, 1] * 4, shape=(1, 8, 8)), [0, 1] * 4)


# -- the certificate, and unlearning ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray, np.ndarray]:
    """A learner of six digits, 40 pictures each, learned by heart; pictures, labels, and which were learned."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = (data.images * 15.9).astype(np.uint8)[order, None], data.target[order]
    images, labels = images[labels < 6], labels[labels < 6]
    learned = np.zeros(len(labels), bool)
    for c in range(6):
        learned[np.flatnonzero(labels == c)[:40]] = True
    mine = Learner("derpp", (1, 8, 8), backbone="mlp", width=64, spc=20, epochs=40, lr=0.003, batch=32, replay_batch=32,
                   threads=1)
    for classes in ((0, 1), (2, 3), (4, 5)):
        rows = learned & np.isin(labels, classes)
        mine.partial_fit(images[rows], [f"digit {c}" for c in labels[rows]])
    path = tmp_path_factory.mktemp("digits") / "digits.learner"
    mine.save(path)
    return path, images, labels, learned


def test_the_certificate_measures_before_and_after(digits: tuple[Path, np.ndarray, np.ndarray, np.ndarray]) -> None:
    path, images, labels, learned = digits
    mine = Learner.load(path)
    certificate = mine.forget("digit 3", images[learned & (labels == 3)], images[~learned & (labels == 3)])
    assert certificate.name == "digit 3"
    assert (certificate.pictures, certificate.own_exemplars) == (40, False)
    assert certificate.accuracy_before is not None
    assert certificate.accuracy_before > 0.9
    assert certificate.accuracy_after == 0
    assert certificate.membership_before is not None
    assert certificate.membership_after is not None
    assert certificate.membership_before.auc > certificate.membership_after.auc
    assert not certificate.membership_after.told
    assert certificate.others == 100
    assert certificate.others_before == certificate.others_after
    assert (certificate.others_after or 0) > 0.97
    document = json.loads(json.dumps(certificate.to_json()))
    assert document["membership_after"]["members"] == 40
    text = certificate.text()
    for words in ("'digit 3' was forgotten on 2", "5 classes are left", "20 exemplars", "found: 0", "0.0 % after",
                  "Recognised of 40 pictures of it", "Membership test, 40 pictures that were learned against",
                  "no more than chance", "Copies of the file"):
        assert words in text
    assert "digit 3" not in "".join(map(str, mine.classes_))
    bare = Learner.load(path).forget("digit 2")
    assert (bare.pictures, bare.own_exemplars, bare.membership_before) == (20, True, None)
    assert "was not tested" in bare.text()


def test_unlearning_keeps_the_others_and_goes_back_towards_an_untrained_network(
        digits: tuple[Path, np.ndarray, np.ndarray, np.ndarray]) -> None:
    path, images, labels, learned = digits
    own, unseen = learned & (labels == 3), ~learned & (labels == 3)
    others, names = ~learned & (labels != 3), [f"digit {c}" for c in labels[~learned & (labels != 3)]]
    plain, unlearned = Learner.load(path), Learner.load(path)
    plain.forget("digit 3")
    certificate = unlearned.forget("digit 3", images[own], images[unseen], unlearn_steps=120)
    assert certificate.unlearn_steps == 120
    assert "lessened by 120 steps of unlearning" in certificate.text()
    assert (certificate.others_after or 0) > 0.97
    assert unlearned.score(images[others], names) > plain.score(images[others], names) - 0.03
    assert unlearned.optimizer is None
    assert unlearned.images_learned == plain.images_learned
    before, after = (mine.net.backbone.state_dict() for mine in (plain, unlearned))
    gone = [float((after[k] - before[k]).norm() / before[k].norm()) for k in before]
    assert min(gone) > 0.2


def test_what_unlearning_does_to_the_weights_and_what_it_aims_at() -> None:
    mine = python_speaking("er", spc=2)
    others = mine.method.stores()[0].images
    old = {k: v.clone() for k, v in mine.net.state_dict().items()}
    logits = mine.scores(others)
    chance = torch.get_rng_state()
    pass_ = Unlearning(mine.method, others)
    torch.set_rng_state(chance)
    untrained = mine.tools.fresh(mine.net.classes).state_dict()
    for name, values in mine.net.state_dict().items():
        share = 1.0 if name.startswith("head") or name in ("mean", "std") else 0.4
        torch.testing.assert_close(values, share * old[name] + (1 - share) * untrained[name])
    mine.net.load_state_dict(old)
    rows = torch.tensor([2, 0])
    batch = Batch(others[rows], to_float(others[rows]), torch.zeros(2), rows, True)
    p = logits[rows].softmax(1)
    assert float(pass_.loss(batch).detach()) == pytest.approx(float(-(p * p.log()).sum(1).mean()), rel=1e-4)
