"""Speed-ups and gains by hand; intervals and p-values against independent computations."""

import numpy as np
import pytest
from scipy import stats

from launcher_lab.study.speedup import Interval, at_equal_cost, at_equal_quality, corrected, p_above
from tests.curves import curve

pytestmark = pytest.mark.slow


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
    assert gain.value.note == "an interval needs at least 3 runs per point"
    assert gain.value.runs == 1


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


def runs_of(generator: np.random.Generator, count: int, truth: float, spread: float) -> tuple[float, ...]:
    return tuple(generator.normal(truth, spread, count))


def test_the_gain_at_equal_epochs_is_welchs_t_test() -> None:
    """This includes unequal numbers of runs, as scipy computes it."""
    generator = np.random.default_rng(0)
    ours, theirs = runs_of(generator, 5, 72, 0.5), runs_of(generator, 3, 71, 0.2)
    gain = at_equal_cost(curve("a", (10.0, ours)), curve("b", (10.0, theirs)), "epochs", 1).value
    peer = stats.ttest_ind(ours, theirs, equal_var=False)
    interval = peer.confidence_interval(0.95)
    assert gain.runs == 3
    assert (gain.value, gain.p) == (pytest.approx(np.mean(ours) - np.mean(theirs)), pytest.approx(peer.pvalue))
    assert (gain.low, gain.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_a_mean_above_a_quality_is_claimed_by_chance_as_often_as_its_p_value_says() -> None:
    generator = np.random.default_rng(0)
    at_chance = [p_above(curve("a", (10.0, runs_of(generator, 5, 70.0, 0.5))).points[0], 70.0) for _ in range(2000)]
    assert np.mean([p is not None and p < 0.05 for p in at_chance]) == pytest.approx(0.05, abs=0.015)
    assert p_above(curve("a", (10.0, (70.0, 71.0))).points[0], 60.0) is None


@pytest.mark.parametrize("spreads", [(1.0, 1.0), (1.0, 3.0)])
@pytest.mark.parametrize("count", range(3, 11))
def test_intervals_contain_the_truth_in_95_of_100_experiments(count: int, spreads: tuple[float, float]) -> None:
    """With three or four runs a side and equal spreads they are a little longer: 96.6 and 95.8 %."""
    generator, trials = np.random.default_rng(count), 4000
    covered = 0
    for _ in range(trials):
        ours, theirs = (runs_of(generator, count, 70, 0.1 * spread) for spread in spreads)
        value = at_equal_cost(curve("a", (10.0, ours)), curve("b", (10.0, theirs)), "epochs", 1).value
        covered += value.low <= 0 <= value.high
        assert (value.p < 0.05) == (not value.low <= 0 <= value.high)
    assert 0.94 - 0.007 <= covered / trials <= (0.97 if count < 5 else 0.96) + 0.007


@pytest.mark.parametrize(("count", "at_point"), [(3, True), (3, False), (6, True), (6, False)])
def test_intervals_of_speed_ups_between_points_contain_the_truth(count: int, at_point: bool) -> None:
    """Time and quality vary, both curves are interpolated or one has the point; the true speed-up is 2."""
    generator, trials, covered = np.random.default_rng(count), 1500, 0
    for _ in range(trials):
        fast, base = (
            [
                (runs_of(generator, count, minutes / speed, 0.02 * minutes), runs_of(generator, count, top1, 0.2))
                for minutes, top1 in ((10.0, 70.0), (40.0, 74.0), (160.0, 76.0))
            ]
            for speed in (2, 1)
        )
        slow = curve("base", *base)
        value = at_equal_quality(curve("fast", *fast), slow, "time", slow.points[1] if at_point else 72.5).value
        covered += value.low <= 2.0 <= value.high
    assert 0.94 - 0.012 <= covered / trials <= 0.97 + 0.012


def test_two_runs_a_side_and_equal_runs_have_no_interval() -> None:
    base, two = curve("b", (10.0, (70.0, 71.0, 70.5))), curve("a", (10.0, (70.0, 71.0)))
    equal = curve("a", (10.0, (70.0,) * 3))
    value = at_equal_cost(two, base, "epochs", 1).value
    assert (value.low, value.high, value.p, value.runs) == (None, None, None, 2)
    assert value.interval("{:.2f}") == ""
    assert at_equal_cost(equal, equal, "epochs", 1).value.note == "no interval: the runs of each point are equal"


def test_an_interval_beyond_the_range_has_an_open_end_and_no_p_value_if_that_end_is_nearer_to_1() -> None:
    """The fast curve ends just above the quality, so how much longer it might take was not measured."""
    base = curve("base", ((40.0,) * 3, (74.0, 74.5, 73.5)), ((160.0,) * 3, (77.0, 77.1, 76.9)))
    fast = curve("fast", ((10.0,) * 3, (70.0, 70.4, 69.6)), ((20.0,) * 3, (74.1, 74.5, 73.7)))
    value = at_equal_quality(fast, base, "time", base.points[0]).value
    assert (value.low, value.p) == (None, None)
    assert value.high > value.value > 1
    assert value.interval("{:.1f}x").startswith("out of range to ")
    assert value.note == "no p-value: the interval leaves the measured range"


def test_against_a_point_of_the_baseline_its_quality_is_uncertain_too() -> None:
    exact = curve("base", ((40.0, 41.0, 39.0), (74.0, 74.001, 73.999)))
    base = curve("base", ((40.0, 41.0, 39.0), (74.0, 74.5, 73.5)))
    fast = curve("fast", ((10.0, 10.0, 10.0), (70.0, 70.2, 69.8)), ((40.0, 40.0, 40.0), (78.0, 78.2, 77.8)))
    narrow, wide = (at_equal_quality(fast, one, "time", one.points[0]).value for one in (exact, base))
    assert wide.value == pytest.approx(2.0)
    assert 1 < wide.low < narrow.low < 2.0 < narrow.high < wide.high
    assert narrow.p < wide.p < 0.05


def test_p_values_are_corrected_by_holms_method() -> None:
    """The example of R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")."""
    values = [Interval(1.0, 3, p=p) for p in (0.01, 0.04, 0.03, 0.005)]
    without = Interval(1.0, 1)
    changed = corrected([values[0], None, *values[1:], without])
    assert changed[1] is None
    assert changed[-1] == without
    assert [one.p_corrected for one in changed if one and one.p] == pytest.approx([0.03, 0.06, 0.06, 0.02])
