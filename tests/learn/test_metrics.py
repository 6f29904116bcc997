"""The measures of a run against the golden example and against loops written from the definitions."""

import random

import pytest

from protocore.learn.metrics import METRICS, average_accuracy, final_accuracy, forgetting, learning_accuracy

GOLDEN = [[90], [70, 92], [60, 80, 94], [65, 70, 85, 96]]


def summary(r):
    return {name: metric(r) for name, metric in METRICS.items()}


def test_golden_example():
    assert final_accuracy(GOLDEN) == pytest.approx(79)
    assert learning_accuracy(GOLDEN) == pytest.approx(93)
    assert average_accuracy(GOLDEN) == pytest.approx(82)
    assert forgetting(GOLDEN) == pytest.approx(18.667, abs=5e-4)
    assert summary(GOLDEN) == {
        "A_T": final_accuracy(GOLDEN), "A_L": learning_accuracy(GOLDEN),
        "A_mean": average_accuracy(GOLDEN), "forgetting": forgetting(GOLDEN),
    }


def test_forgetting_takes_the_best_earlier_accuracy_not_the_first():
    # Task 1 is best after task 2: 80 - 50; task 2: 60 - 40.
    assert forgetting([[70], [80, 60], [50, 40, 90]]) == pytest.approx((30 + 20) / 2)


def test_forgetting_is_negative_where_later_tasks_helped():
    assert forgetting([[50], [60, 80]]) == pytest.approx(-10)


def test_against_the_definitions():
    chance = random.Random(0)
    for tasks in range(1, 8):
        r = [[chance.uniform(0, 100) for _ in range(i + 1)] for i in range(tasks)]
        last = tasks - 1
        assert final_accuracy(r) == pytest.approx(sum(r[last][j] for j in range(tasks)) / tasks)
        assert learning_accuracy(r) == pytest.approx(sum(r[i][i] for i in range(tasks)) / tasks)
        rows = [sum(r[i][j] for j in range(i + 1)) / (i + 1) for i in range(tasks)]
        assert average_accuracy(r) == pytest.approx(sum(rows) / tasks)
        if tasks == 1:
            assert forgetting(r) is None
            continue
        drops = []
        for j in range(last):
            best = max(r[i][j] for i in range(last) if i >= j)
            drops.append(best - r[last][j])
        assert forgetting(r) == pytest.approx(sum(drops) / len(drops))


def test_the_single_row_of_joint_has_a_final_accuracy_only():
    assert summary([[90, 80, 70]]) == {"A_T": 80, "A_L": None, "A_mean": None, "forgetting": None}


def test_a_stream_of_one_task_has_nothing_to_forget():
    assert summary([[88]]) == {"A_T": 88, "A_L": 88, "A_mean": 88, "forgetting": None}
