"""A budget in bytes holds whenever it is reported, is refused before the training or not at all, and is used up."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import begin, task_of
from protocore.codecs import codec_named
from protocore.data.images import ArrayImages, ImageSet
from protocore.data.stream import Stream, Task
from protocore.errors import BudgetError
from protocore.learn.learner import Learner
from protocore.learn.room import check_stream
from protocore.memory.plan import file_size, plan_of
from protocore.memory.store import ExemplarStore
from protocore.methods import METHODS
from protocore.runs.configure import configure
from protocore.runs.job import run

SMALL = {"benchmark": "digits", "images_per_class": 14, "epochs": 1, "threads": 1, "backbone": "mlp", "width": 8,
         "batch": 8, "replay_batch": 8}
CHEAP = {"onpro": {"variants": 2}, "pbcs": {"outer_steps": 2, "inner_steps": 2},
         "csrel": {"ref_epochs": 1, "proxy_steps": 1, "selection_steps": 2}}
REPLAYING = [name for name, method in METHODS.items() if method.replays]
KEEPING = [name for name, method in METHODS.items() if method.keeps != "nothing"]
CODECS = ["pixels", "jpeg:95", "webp:90", "vqgan:4", "vqgan:2,entropy"]


def flags_of(method: str, **more: object) -> dict[str, object]:
    return {"method": method} | SMALL | CHEAP.get(method, {}) | more


def checked(flags: dict[str, object], folder: Path) -> dict[str, object]:
    """A run whose memory keeps to its budget at every evaluation and is as large as its ledger says."""
    result = run(configure(flags), folder, restart=True)
    kept, size = result.bytes_after_each_task, (folder / "memory.safetensors").stat().st_size
    assert max(kept) <= flags.get("budget", max(kept))
    assert result.bytes_kept == kept[-1] == size
    return result


def advised(error: BudgetError) -> int:
    return int(re.findall(r"need --budget (\d+)", str(error))[0])


# -- at every moment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("method", REPLAYING)
def test_a_budget_holds_at_every_evaluation_whatever_the_codec(method: str, online: bool, tmp_path: Path) -> None:
    chance = random.Random(f"{method} {online}")
    for codec in ["jpeg:95", *chance.sample([c for c in CODECS if c != "jpeg:95"], 2)]:
        more = {"online": True, "online_window": 40} if online else {}
        if method in ("er", "der", "onpro") and chance.random() < 0.5:
            more["fill"] = "class"
        if method == "protocore" and chance.random() < 0.5:
            more["real"] = 2
        flags = flags_of(method, codec=codec, budget=chance.randint(6_000, 12_000), **more)
        checked(flags, tmp_path / re.sub(r"\W", "-", codec))


@pytest.mark.parametrize("flags", [
    {"method": "onpro", "variants": 2}, {"method": "er", "fill": "class"}, {"method": "der"},
    {"method": "protocore", "real": 3}, {"method": "protocore", "real": 3, "codec": "pixels"},
])
def test_pictures_that_take_more_and_more_bytes_stay_within_the_budget(flags: dict[str, object]) -> None:
    """Flat pictures promise room for many; within the window that follows, the noisy ones take ten times as much."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 30)
    loud = np.clip(labels * 60, 0, 255)[:, None, None, None]
    images = (128 + loud * (rng.random((180, 1, 12, 12)) - 0.5)).clip(0, 255).astype(np.uint8)
    budget = 9_000
    mine = Learner.of(configure({**SMALL, "online": True, "codec": "jpeg:95", "budget": budget, **flags}), (1, 12, 12))
    seen: list[int] = []
    for part in np.split(np.arange(180), [70, 110, 150]):
        mine.learn_window(Task.from_arrays(images[part], labels[part]),
                          on_step=lambda *_: seen.append(mine.ledger().total))
    assert max(seen) <= budget
    assert max(seen) > budget / 2
    assert mine.method.stores()[0].counts().keys() == set(range(6))


# -- before the training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("method", KEEPING)
def test_the_advised_budget_lasts_to_the_end_of_the_stream_and_one_byte_less_is_refused(
        method: str, online: bool, tmp_path: Path) -> None:
    chance = random.Random(f"{method} {online} advice")
    codecs = chance.sample(CODECS, 2) if METHODS[method].replays else ["pixels"]
    for codec in codecs:
        more: dict[str, object] = {"online": True, "online_window": 40} if online else {}
        if METHODS[method].replays and chance.random() < 0.3:
            more["spc"] = 2
        if method == "protocore" and chance.random() < 0.5:
            more |= {"real": 1, "exemplars": "synthetic", "blend": 2}
        flags = flags_of(method, codec=codec, **more)
        with pytest.raises(BudgetError) as refused:
            checked(flags | {"budget": chance.randint(20, 200)}, tmp_path / "refused")
        assert not (tmp_path / "refused/checkpoint.safetensors").exists()
        budget = advised(refused.value)
        with pytest.raises(BudgetError, match=f"need --budget {budget} to the end of the stream"):
            checked(flags | {"budget": budget - 1}, tmp_path / "refused")
        checked(flags | {"budget": budget}, tmp_path / f"advised {codecs.index(codec)}")


@pytest.mark.parametrize("method", ["protocore", "er", "icarl", "derpp", "csrel", "rm", "fecam", "pass", "ldc", "ewc"])
def test_a_budget_of_what_a_run_took_is_enough_and_one_byte_less_is_not(method: str, tmp_path: Path) -> None:
    fixed = {"spc": 1} | ({"fill": "class"} if method in ("er", "derpp") else {})
    flags = flags_of(method, **(fixed if METHODS[method].replays else {}))
    taken = checked(flags, tmp_path / "by number").bytes_kept
    budget = {**flags, "budget": taken, "spc": None} if METHODS[method].replays else {**flags, "budget": taken}
    if method == "csrel":
        budget["balance"] = "on"  # as with --spc
    assert checked(budget, tmp_path / "by bytes").bytes_kept <= taken
    with pytest.raises(BudgetError, match=f"need --budget {taken} "):
        checked(budget | {"budget": taken - 1}, tmp_path / "too small")


def named_stream(names: list[str]) -> Stream:
    labels = np.repeat(np.arange(len(names)), 6)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    part = ImageSet(ArrayImages(images), labels, tuple(names), "none")
    return Stream(part, part, classes_per_task=1)


def test_a_refusal_names_the_first_class_without_room_the_total_and_a_codec_that_helps() -> None:
    stream = named_stream(["stop", "yield", "no entry", "deer"])
    flags = {**SMALL, "method": "er", "budget": 8_000, "fill": "class"}

    def check(**more: object) -> None:
        check_stream(Learner.of(configure(flags | more), stream.image_shape), stream)

    with pytest.raises(BudgetError) as refused:
        check()
    said = str(refused.value)
    assert "--budget 8,000 bytes cannot hold 4 classes with 1 exemplar each: they take 12," in said
    assert "2 classes would fit, but not 'no entry'" in said
    assert "with --codec vqgan:4, --budget 8000 is enough" in said
    check(codec="vqgan:4")
    check(budget=advised(refused.value))
    with pytest.raises(BudgetError, match=r"with --codec vqgan:4, --budget (\d+) is enough") as refused:
        check(budget=100)
    small = int(re.findall(r"vqgan:4, --budget (\d+)", str(refused.value))[0])
    check(budget=small, codec="vqgan:4")
    with pytest.raises(BudgetError):
        check(budget=small - 1, codec="vqgan:4")
    with pytest.raises(BudgetError, match=r"--capacity 3 cannot hold 4 classes.*'deer' would have none"):
        check(budget=None, capacity=3)


def test_the_check_before_the_training_changes_no_number(tmp_path: Path) -> None:
    flags = flags_of("er", codec="jpeg:50", budget=9_000)
    mine = Learner.of(configure(flags), (1, 8, 8))
    before = torch.get_rng_state()
    stream = named_stream(["a", "b"])
    colour = Learner.of(configure(flags), stream.image_shape)
    torch.set_rng_state(before)
    check_stream(colour, stream)
    assert torch.equal(torch.get_rng_state(), before)
    assert mine.ledger().total == colour.ledger().total
    assert [len(stream.open(0)), stream.task_size(1)] == [6, 6]


def test_pictures_that_are_measured_before_the_training_are_given_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, measured, everything = named_stream(["a", "b"]), list[Task](), Stream.everything
    monkeypatch.setattr(Stream, "everything", lambda self: measured.append(everything(self)) or measured[-1])
    check_stream(Learner.of(configure(flags_of("er", codec="jpeg:50", budget=9_000)), stream.image_shape), stream)
    assert [task.closed for task in measured] == [True]


def test_no_exemplar_is_longer_than_a_decoder_says() -> None:
    noise = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    for codec in ("jpeg:100", "webp:100", "vqgan:4,entropy", "vqgan:4", "pixels"):
        decoder = codec_named(codec, (1, 8, 8))
        assert decoder.largest is not None
        store = ExemplarStore(decoder)
        longest = max(map(len, store.codings.of(noise)))
        assert longest <= decoder.largest
        if codec == "vqgan:4,entropy":  # random codes are the worst that can be stored
            longest = max(map(len, decoder.to_bytes(decoder.random(500, 1.0))))
            assert longest <= decoder.largest < 3 * longest


def test_a_learner_of_own_tasks_is_checked_task_by_task() -> None:
    mine = Learner.of(configure({**SMALL, "method": "icarl", "budget": 420}), (1, 8, 8))
    images = np.zeros((20, 1, 8, 8), np.uint8)
    mine.learn(Task.from_arrays(images, np.arange(20) % 2, class_names=("cat", "dog", "cow", "hen", "pig")))
    steps: list[int] = []
    with pytest.raises(BudgetError, match=r"cannot hold 5 classes.*4 classes would fit, but not 'pig'"):
        mine.learn(Task.from_arrays(images, np.arange(20) % 3 + 2, class_names=("cat", "dog", "cow", "hen", "pig")),
                   on_step=lambda *_: steps.append(1))
    assert not steps


# -- nothing left over ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", REPLAYING)
def test_what_a_budget_has_room_for_is_kept(method: str, tmp_path: Path) -> None:
    more = {"fill": "class"} if issubclass(METHODS[method], METHODS["er"].__bases__[0]) else {}
    flags = flags_of(method, budget=5_000, tasks=3, images_per_class=40, **more)
    result = checked(flags, tmp_path)
    row = 64 + 1 + 20 * (method in ("der", "derpp")) + 5 * (method == "csrel")
    assert 5_000 - result.bytes_kept < row + 8  # headers come in eights


@pytest.mark.parametrize(("flags", "counts"), [
    ({"method": "ocs", "capacity": 15}, [4, 4, 4, 3]), ({"method": "icarl", "capacity": 15}, [3, 3, 3, 3]),
    ({"method": "er", "capacity": 15, "fill": "class"}, [4, 4, 4, 3]), ({"method": "bcsr", "spc": 3}, [3, 3, 3, 3]),
])
def test_the_remainder_goes_to_the_first_classes_but_icarl_keeps_to_its_paper(
        flags: dict[str, object], counts: list[int]) -> None:
    mine = Learner.of(configure({**SMALL, **flags}), (1, 8, 8))
    for first in (0, 2):
        mine.learn(Task.from_arrays(np.zeros((24, 1, 8, 8), np.uint8), np.arange(24) % 2 + first))
    assert list(mine.method.stores()[0].counts().values()) == counts


@pytest.mark.parametrize("method", KEEPING)
def test_a_plan_is_the_memory_to_the_byte(method: str, tmp_path: Path) -> None:
    mine = Learner.of(configure(flags_of(method, spc=1)), (1, 8, 8))
    rng = np.random.default_rng(0)
    for first in (0, 2):
        images = rng.integers(0, 256, (24, 1, 8, 8), dtype=np.uint8)
        labels = np.arange(24) % 2 + first
        task = task_of(labels, images=images)
        begin(mine, task)
        at = mine.method.horizon(task)
        plan = mine.method.planned(at, len(at.classes))
        task.close()
        mine.learn(task_of(labels, images=images))
        assert plan == plan_of(mine.memory())
        assert file_size(plan) == mine.ledger().total
