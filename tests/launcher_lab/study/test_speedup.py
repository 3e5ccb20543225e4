"""Speed-ups and gains by hand; intervals and p-values against independent computations."""

import math

import numpy as np
import pytest
from scipy import stats

from launcher_lab.study.curves import CurvePoint
from launcher_lab.study.speedup import at_equal_cost, at_equal_quality, estimate, resample
from tests.curves import curve


def test_speed_up_and_gain_by_hand() -> None:
    fast = curve("fast", (10, 70), (40, 74), (160, 75))
    base = curve("base", (20, 68), (80, 72))
    speedup = at_equal_quality(fast, base, "time", 72.0)
    assert (speedup.cost, speedup.baseline_cost) == (pytest.approx(20), pytest.approx(80))
    assert speedup.value.value == pytest.approx(4.0)
    gain = at_equal_cost(fast, base, "time", 40.0)
    assert (gain.quality, gain.baseline_quality) == (pytest.approx(74), pytest.approx(70))
    assert gain.value.value == pytest.approx(4.0)
    assert gain.value.p is None
    assert "two seeds" in gain.value.note


def test_beyond_the_measured_range_there_is_a_reason_and_no_number() -> None:
    fast, base = curve("fast", (10, 70), (40, 74)), curve("base", (20, 60), (80, 72))
    high, low = at_equal_quality(fast, base, "time", 73.0), at_equal_quality(fast, base, "time", 65.0)
    assert high.value is None
    assert high.reason == "base has no point this high; its best has 72.00 %"
    assert low.value is None
    assert low.reason == "fast has no point this low; its cheapest has 70.00 %"
    assert low.bound == pytest.approx(np.exp(np.log(20) + 5 / 12 * np.log(4)) / 10)
    assert at_equal_quality(base, fast, "time", 65.0).bound is None
    assert at_equal_cost(fast, base, "time", 10.0).reason == "base was measured only from 20 to 80"
    assert at_equal_quality(fast, base, "money", 72.0).reason.startswith("fast has no money")


def test_an_interval_contains_the_value_and_covers_the_truth() -> None:
    """In repeated experiments with a known speed-up of 2, about 95 % of the intervals contain it."""
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        base, fast = [], []
        for minutes, top1 in ((10.0, 70.0), (40.0, 74.0), (160.0, 76.0)):
            noise = generator.normal(0, 0.2, (2, 8))
            base.append(((minutes,) * 8, tuple(top1 + noise[0])))
            fast.append(((minutes / 2,) * 8, tuple(top1 + noise[1])))
        compared = at_equal_quality(curve("fast", *fast), curve("base", *base), "time", 73.0)
        assert compared.value.low <= compared.value.value <= compared.value.high
        covered += compared.value.low <= 2.0 <= compared.value.high
    assert 0.88 <= covered / 200 <= 0.99


def test_the_spread_of_a_resampled_mean_is_the_standard_error() -> None:
    point = CurvePoint(1, (70.0, 71.0, 73.0), {"time": (10.0, 10.0, 10.0)})
    _, qualities = resample([point], "time", np.random.default_rng(0))
    assert qualities.std() == pytest.approx(stats.sem(point.top1), rel=0.03)
    assert qualities.mean() == pytest.approx(np.mean(point.top1), abs=0.05)


def test_the_p_value_is_students_t_of_the_bootstrap_error() -> None:
    resampled = np.random.default_rng(0).normal(1.0, 0.5, 4000)
    compared = estimate(1.0, resampled, fewest_seeds=4)
    assert compared.p == pytest.approx(2 * stats.t.sf(1.0 / resampled.std(ddof=1), df=3))
    assert (compared.low, compared.high) == (pytest.approx(0.02, abs=0.1), pytest.approx(1.98, abs=0.1))


def test_an_interval_beyond_the_range_has_an_open_end_and_no_p_value() -> None:
    resampled = np.where(np.arange(4000) < 400, -math.inf, np.linspace(0.5, 1.5, 4000))
    compared = estimate(1.0, resampled, fewest_seeds=5)
    assert compared.low is None
    assert compared.high is not None
    assert compared.p is None
    assert "10% of the resamples" in compared.note


def test_against_a_point_of_the_baseline_its_quality_is_resampled_too() -> None:
    base = curve("base", ((40.0, 41.0, 39.0), (74.0, 74.5, 73.5)))
    fast = curve("fast", ((10.0, 10.0, 10.0), (70.0, 70.2, 69.8)), ((40.0, 40.0, 40.0), (78.0, 78.2, 77.8)))
    at_point = at_equal_quality(fast, base, "time", base.points[0])
    assert at_point.value.value == pytest.approx(2.0)
    assert at_point.value.low < 2.0 < at_point.value.high
    assert at_point.value.p < 0.05
