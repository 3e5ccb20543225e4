"""AlgoPerf's score: by hand, and the profile against the integral that its paper defines."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.study.algoperf import median_of_fastest, profile, score, score_runs
from launcher.study.runs import read_run
from tests.made_runs import MakeRun


def test_the_fastest_trial_of_each_study_and_their_median() -> None:
    assert median_of_fastest([[3, 1, 2], [math.inf, 5], [math.inf, math.inf]]) == 5
    assert median_of_fastest([[1], [math.inf], [math.inf]]) == math.inf
    assert median_of_fastest([]) == math.inf


def test_profile_and_score_by_hand() -> None:
    seconds = {"a": {"x": 10.0, "y": 20.0}, "b": {"x": 20.0, "y": 10.0}, "c": {"x": math.inf, "y": 45.0}}
    assert [profile(seconds, "a", ratio) for ratio in (1.0, 1.99, 2.0)] == [0.5, 0.5, 1.0]
    # a: ratio 1 counts in full, ratio 2 for two thirds
    assert score(seconds, "a") == pytest.approx((1 + 2 / 3) / 2)
    assert score(seconds, "c") == 0.0
    assert profile(seconds, "c", 4.5) == 0.5


def test_a_workload_that_nobody_reaches_scores_nothing() -> None:
    seconds = {"a": {"x": math.inf}, "b": {"x": math.inf}}
    assert (score(seconds, "a"), profile(seconds, "a", 4)) == (0.0, 0.0)


times = st.one_of(st.floats(1, 100), st.just(math.inf))


@given(st.lists(st.tuples(times, times, times), min_size=1, max_size=4))
def test_the_score_is_the_profiles_integral(rows: list[tuple[float, float, float]]) -> None:
    """The paper's formula, written anew: the integral of rho over ratios 1 to 4, over 3, by a fine midpoint sum."""
    seconds = {str(number): dict(zip("xyz", row, strict=True)) for number, row in enumerate(rows)}
    best = np.min(np.array(rows), axis=0)
    steps = 3000
    taus = 1 + (np.arange(steps) + 0.5) * 3 / steps
    for number, row in enumerate(rows):
        ratios = np.array([t / b if np.isfinite(t) else np.inf for t, b in zip(row, best, strict=True)])
        rho = (ratios[None, :] <= taus[:, None]).mean(axis=1)
        assert score(seconds, str(number)) == pytest.approx(rho.mean(), abs=3 / steps)


def test_run_folders_are_scored_by_recipe_seed_and_target(make_run: MakeRun) -> None:
    for seed in (0, 1, 2):
        make_run(f"fast-{seed}", (0.5, 0.8), (60.0, 60.0), seed=seed)
        make_run(f"slow-{seed}", (0.5, 0.5, 0.8), (60.0, 60.0, 60.0), seed=seed, recipe="hot")
    paths = [make_run("fast-trial", (0.8, 0.9), (60.0, 60.0), seed=0), make_run("torn", seed=7)]
    (paths[1] / "config.yaml").write_bytes(b"{")
    folder = paths[0].parent
    scores = score_runs([read_run(path) for path in sorted(folder.iterdir())], 0.8, "self")
    (workload,) = scores.seconds["hot"]
    # note: two of three studies of mild need 120 s; the clock counts the first epoch as it was
    assert scores.seconds["mild"][workload] == 120.0
    assert scores.seconds["hot"][workload] == 180.0
    assert scores.score["mild"] == 1.0
    assert scores.score["hot"] == pytest.approx(2.5 / 3)
    assert any("torn is left out" in note for note in scores.notes)
    assert any("mild on shapes resnet18: 3 studies of 1 or 2 trials" in note for note in scores.notes)


def test_times_of_two_machines_make_no_score(make_run: MakeRun) -> None:
    paths = [make_run(name, seed=seed) for seed, name in enumerate("abc")]
    metrics = paths[2] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"cpu"', '"NVIDIA H100"'))
    scores = score_runs([read_run(path) for path in paths], 0.6, "self")
    assert "1 of the runs are on 1x NVIDIA H100 and left out, most were on 1x cpu" in scores.notes
    assert any("mild on shapes resnet18: 2 studies" in note for note in scores.notes)
