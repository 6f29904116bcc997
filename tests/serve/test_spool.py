"""What waits is on disk: whenever the process dies, nothing is lost, half there, or learned twice."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from protocore.serve import spool as module
from protocore.serve.jobs import Jobs
from protocore.serve.spool import Full, Order, Spool


class Died(BaseException):
    """The process was killed here."""


def put(spool: Spool, name: str, data: bytes) -> bool:
    part = spool.part()
    part.write_bytes(data)
    try:
        return spool.add(name, part, hashlib.sha256(data).hexdigest())
    finally:
        part.unlink(missing_ok=True)


@pytest.fixture
def learner(tmp_path: Path) -> Path:
    return tmp_path / "mine.learner"


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The process dies before the n-th change on the disk, once `left` is set to n."""
    life = {"left": -1}

    def mortal(real: Any) -> Any:
        def act(*words: Any, **more: Any) -> Any:
            if life["left"] == 0:
                raise Died
            life["left"] -= 1
            return real(*words, **more)
        return act

    monkeypatch.setattr(Path, "unlink", mortal(Path.unlink))
    for name in ("write_atomic", "write_json"):
        monkeypatch.setattr(module, name, mortal(getattr(module, name)))
    monkeypatch.setattr(module.os, "replace", mortal(module.os.replace))
    return life


@pytest.mark.parametrize("moment", range(12))
def test_an_order_that_is_over_is_over_whenever_the_process_dies(learner: Path, dying: dict[str, int],
                                                                 moment: int) -> None:
    for over in ("done", "failed"):
        spool = Spool(learner)
        for k in range(3):
            put(spool, "red" if k else "blue", bytes([k]))
        order = Order("learn")
        spool.put(order)
        table = spool.take(order)
        assert table is not None
        rows = table.read_text().split()
        put(spool, "late", b"4")
        dying["left"] = moment
        try:
            getattr(spool, over)(order)
            ended = True
        except Died:
            ended = False
        dying["left"] = -1
        again = Spool(learner)
        if again.orders():
            assert not ended
            assert again.counts().pop("late") == 1
            taken = again.take(again.orders()[0])
            assert taken is not None
            assert taken.read_text().split()[:4] == rows or over == "failed", "it goes on with the very same pictures"
            assert all((again.folder / row.split(",")[0]).exists() for row in rows[1:])
            again.done(again.orders()[0])
        else:
            assert again.counts() == ({"late": 1} if over == "done" else {"blue": 1, "late": 1, "red": 2})
        for name in ("red", "blue", "late"):
            again.drop(name)
        left = [path.name for path in again.folder.iterdir()]
        assert not left, f"{over}, {moment}"


@pytest.mark.parametrize("moment", range(4))
def test_a_picture_waits_whole_or_not_at_all(learner: Path, dying: dict[str, int], moment: int) -> None:
    spool = Spool(learner)
    dying["left"] = moment
    try:
        kept = put(spool, "red", b"picture")
    except Died:
        kept = False
    dying["left"] = -1
    again = Spool(learner)
    assert again.counts() in ({}, {"red": 1})
    assert not kept or again.counts() == {"red": 1}
    assert not list(again.folder.glob("part-*"))
    put(again, "red", b"picture")
    assert again.counts() == {"red": 1}


def test_the_same_picture_of_two_classes_waits_twice_and_of_one_class_once(learner: Path) -> None:
    spool = Spool(learner)
    assert [put(spool, name, b"1") for name in ("a", "a", "b/../c", "b/../c")] == [True, False, True, False]
    assert spool.counts() == {"a": 1, "b/../c": 1}
    order = Order("learn")
    spool.put(order)
    spool.take(order)
    assert spool.counts() == {}
    assert not put(spool, "a", b"1"), "it is being learned"
    assert put(spool, "a", b"2")
    spool.failed(order)
    assert spool.counts() == {"a": 2, "b/../c": 1}


def test_no_more_wait_than_may(learner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    spool = Spool(learner)
    put(spool, "a", b"123456")
    with pytest.raises(Full, match="learn them first"):
        put(spool, "a", b"1234567")
    assert put(spool, "a", b"1234")
    assert not list(spool.folder.glob("part-*"))


def test_orders_keep_their_order_and_only_their_owner_reads_them(learner: Path) -> None:
    spool = Spool(learner)
    for place in (3, 1, 2):
        spool.put(Order("forget", f"class {place}", place=place))
    assert [order.name for order in Spool(learner).orders()] == ["class 1", "class 2", "class 3"]
    assert spool.folder.stat().st_mode & 0o077 == 0


def test_what_comes_while_a_learn_runs_is_for_the_next_one(learner: Path) -> None:
    spool = Spool(learner)
    jobs = Jobs(learner, spool)  # nothing works: it was never started
    put(spool, "red", b"1")
    first = jobs.learn()
    assert jobs.learn().order.id == first.order.id
    jobs._update(first.order.id, state="running")
    assert spool.take(first.order) is not None
    put(spool, "red", b"2")
    second = jobs.learn()
    assert second.order.id != first.order.id
    assert jobs.learn().order.id == second.order.id
