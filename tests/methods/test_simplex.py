"""Projections on the simplex and on the capped simplex, against closed forms, bisection and their own properties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocore.methods.parts.simplex import project_capped_simplex, project_simplex

# Few distinct values, so that ties and entries on a corner are met, too.
VECTORS = st.lists(st.one_of(st.floats(-3, 3, width=32), st.integers(-4, 8).map(lambda k: k / 4)), min_size=1,
                   max_size=12).map(lambda values: torch.tensor(values, dtype=torch.float64))
TOTALS = st.one_of(st.floats(0, 13), st.integers(0, 13).map(float))


def by_bisection(f, low: float, high: float) -> float:
    """The v with f(v) = 0, f falling."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    return (low + high) / 2


@pytest.mark.parametrize(("v", "expected"), [
    ([.5, .4, .3, -.1], [.433333, .333333, .233333, 0]),
    ([2, 0, 0], [1, 0, 0]),
    ([.25] * 4, [.25] * 4),
    ([7.0], [1.0]),
    ([-5.0, -6.0], [1.0, 0.0]),
])
def test_simplex_closed_forms(v, expected):
    assert project_simplex(torch.tensor(v)).tolist() == pytest.approx(expected, abs=1e-6)


@given(v=VECTORS)
@settings(max_examples=200, deadline=None)
def test_simplex_is_the_nearest_point(v):
    w = project_simplex(v)
    assert float(w.min()) >= 0
    assert float(w.sum()) == pytest.approx(1, abs=1e-12)
    assert torch.allclose(project_simplex(w), w, atol=1e-12)
    theta = by_bisection(lambda t: float((v - t).clamp(min=0).sum()) - 1, float(v.min()) - 2, float(v.max()))
    assert torch.allclose(w, (v - theta).clamp(min=0), atol=1e-9)
    # No corner e_i lies on the other side: <v - w, e_i - w> <= 0 for all i.
    assert float((v - w).max() - (v - w) @ w) <= 1e-9


@pytest.mark.parametrize(("s", "total", "expected"), [
    ([.9, .8, .3, .1], 1.5, [.733333, .633333, .133333, 0]),
    ([1.7, .9, .2, .2], 2, [1, .8, .1, .1]),
    ([.2, .2, .2], 2, [.2, .2, .2]),  # below the budget: unchanged
    ([-.5, 1.5, .5], 2, [0, 1, .5]),  # only the box binds
    ([5.0, 5.0, 5.0], 2, [.666667] * 3),  # the middle of a long flat part
    ([9.0, 8.0, 0.0], 2, [1, 1, 0]),
    ([.5, .5], 0, [0, 0]),
    ([3.0, 4.0], 5, [1, 1]),
    ([4.0], .25, [.25]),
])
def test_capped_simplex_closed_forms(s, total, expected):
    assert project_capped_simplex(torch.tensor(s), total).tolist() == pytest.approx(expected, abs=1e-6)


@given(s=VECTORS, total=TOTALS)
@settings(max_examples=300, deadline=None)
def test_capped_simplex_is_the_nearest_point(s, total):
    p = project_capped_simplex(s, total)
    assert float(p.min()) >= 0
    assert float(p.max()) <= 1
    assert float(p.sum()) <= total + 1e-9
    assert torch.allclose(project_capped_simplex(p, total), p, atol=1e-9)
    if float(s.clamp(0, 1).sum()) <= total:
        assert torch.equal(p, s.clamp(0, 1))
    else:
        assert float(p.sum()) == pytest.approx(total, abs=1e-9)
        v = by_bisection(lambda t: float((s - t).clamp(0, 1).sum()) - total, 0.0, float(s.max()) + 1)
        assert torch.allclose(p, (s - v).clamp(0, 1), atol=1e-9)


def test_long_vectors_keep_their_type_and_hold_the_budget():
    torch.manual_seed(0)
    s = torch.rand(20_000) * 3 - 1
    p = project_capped_simplex(s, 137)
    assert p.dtype == torch.float32
    assert float(p.double().sum()) == pytest.approx(137, abs=1e-3)
    w = project_simplex(s)
    assert w.dtype == torch.float32
    assert float(w.double().sum()) == pytest.approx(1, abs=1e-6)
    assert s.min() < 0  # the argument is left alone


def test_empty_weights_stay_empty():
    assert project_capped_simplex(torch.empty(0), 3).shape == (0,)
