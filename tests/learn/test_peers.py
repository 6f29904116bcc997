"""Forgetting and transfer as we and others define them, on matrices worked out by hand."""

from __future__ import annotations

import pytest

from protocore.learn import metrics
from protocore.learn.metrics import OURS, PEERS

FOUR = [[90.0], [70.0, 92.0], [60.0, 80.0, 94.0], [65.0, 70.0, 85.0, 96.0]]
LATE = [[70.0], [75.0, 80.0], [85.0, 60.0, 90.0]]  # task 1 is best at the end
TWO = [[90.0], [50.0, 80.0]]


@pytest.mark.parametrize(("r", "ours", "mammoth", "pycil", "libcontinual"), [
    (FOUR, 56 / 3, 56 / 3, 56 / 3, 47 / 3), (LATE, 5.0, 10.0, 10.0, -7.5), (TWO, 40.0, 40.0, 40.0, 0.0)])
def test_forgetting_by_everybody(r, ours, mammoth, pycil, libcontinual) -> None:
    assert OURS.forgetting(r) == pytest.approx(ours)
    found = {name: peer.forgetting(r) for name, peer in PEERS.items()}
    assert found == pytest.approx({"mammoth": mammoth, "pycil": pycil, "libcontinual": libcontinual})


@pytest.mark.parametrize(("r", "ours", "libcontinual"), [
    (FOUR, -56 / 3, -77 / 6), (LATE, -2.5, 5.0), (TWO, -40.0, 0.0)])
def test_backward_transfer_by_those_who_report_it(r, ours, libcontinual) -> None:
    assert metrics.backward_transfer(r) == pytest.approx(ours)
    assert PEERS["mammoth"].backward_transfer is metrics.backward_transfer
    assert PEERS["pycil"].backward_transfer is None
    assert metrics.libcontinual_backward_transfer(r) == pytest.approx(libcontinual)
    learning, final, tasks = metrics.learning_accuracy(r), metrics.final_accuracy(r), len(r)
    assert final == pytest.approx(learning + ours * (tasks - 1) / tasks)  # an identity


def test_forward_transfer_needs_both_measurements() -> None:
    assert metrics.forward_transfer([30.0, 55.0, 40.0], [50.0, 50.0, 10.0]) == pytest.approx(5.0)
    assert metrics.forward_transfer([], []) is None
    assert metrics.forward_transfer([30.0], [50.0, 50.0]) is None


def test_one_task_and_joint_say_nothing() -> None:
    for r in ([[90.0]], [[80.0, 70.0]]):
        for definitions in (OURS, PEERS["mammoth"], PEERS["pycil"]):
            assert definitions.forgetting(r) is None
    assert metrics.libcontinual_forgetting([[90.0]]) == 0.0  # as it prints
    assert metrics.libcontinual_forgetting([[80.0, 70.0]]) is None


def test_no_matrix_is_changed() -> None:
    r = [list(row) for row in FOUR]
    for definitions in (OURS, *PEERS.values()):
        definitions.forgetting(r)
    assert r == FOUR
