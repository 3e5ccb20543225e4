"""Interpolation of curves, and the Pareto front: small cases by hand, and properties of all curves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.results.curve_math import cost_at, pareto_front, quality_at

COSTS, QUALITIES = (10.0, 40.0, 160.0), (70.0, 74.0, 75.0)


@pytest.mark.parametrize(
    ("quality", "cost"),
    [
        (70, 10),
        (72, 20),  # half of the way from 10 to 40, which on the logarithm is 20
        (74, 40),
        (74.5, 80),
        (75, 160),
        (69.9, 0),  # the cheapest point is better already
        (75.1, math.inf),  # never reached
    ],
)
def test_the_cost_of_a_quality(quality: float, cost: float) -> None:
    assert cost_at(COSTS, QUALITIES, quality) == pytest.approx(cost, rel=1e-12)


@pytest.mark.parametrize(
    ("cost", "quality"), [(10, 70), (20, 72), (40, 74), (160, 75), (9.9, -math.inf), (161, math.inf)]
)
def test_the_quality_of_a_cost(cost: float, quality: float) -> None:
    assert quality_at(COSTS, QUALITIES, cost) == pytest.approx(quality, rel=1e-12)


def test_the_first_crossing_of_a_falling_curve_counts() -> None:
    assert cost_at((1.0, 4.0, 9.0, 16.0), (1.0, 3.0, 0.0, 5.0), 2.0) == pytest.approx(2.0)


points = st.lists(
    st.tuples(st.floats(0.1, 1e4), st.floats(0, 100)), min_size=1, max_size=8, unique_by=lambda point: point[0]
).map(sorted)


@given(points, st.floats(0, 100))
def test_an_interpolated_cost_is_measured_and_reaches_the_quality(
    curve: list[tuple[float, float]], quality: float
) -> None:
    costs, qualities = zip(*curve, strict=True)
    cost = cost_at(costs, qualities, quality)
    if cost == 0.0:
        assert qualities[0] > quality
    elif math.isinf(cost):
        assert max(qualities) < quality
    else:
        assert costs[0] * (1 - 1e-9) <= cost <= costs[-1] * (1 + 1e-9)
        read = quality_at(costs, qualities, min(max(cost, costs[0]), costs[-1]))
        # note: a steep curve is exact only up to the rounding error of the cost
        steepest = np.max(np.abs(np.diff(qualities)) / np.diff(np.log(costs)), initial=0.0)
        assert read == pytest.approx(quality, abs=1e-9 + 1e-12 * steepest)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_front_has_all_points_that_are_not_dominated(cloud: list[tuple[int, int]]) -> None:
    def dominated(point: tuple[int, int]) -> bool:
        return any(o[0] <= point[0] and o[1] >= point[1] and o != point for o in cloud)

    expected = [i for i, point in enumerate(cloud) if not dominated(point)]
    front = pareto_front([(float(c), float(q)) for c, q in cloud])
    assert sorted(front) == expected
    assert [cloud[i][0] for i in front] == sorted(cloud[i][0] for i in front)
