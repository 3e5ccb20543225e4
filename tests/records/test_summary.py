"""The summary and the learning curve, which are computed from the records."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from launcher.records.learning_curve import draw_curve
from launcher.records.run_folder import RunFolder
from launcher.records.summary import last_warnings, save_estimate
from tests.made_runs import end, evaluation, training, written

from .conftest import CONFIG, summary


def test_the_summary_is_computed_from_the_records(folder: RunFolder) -> None:
    shown = summary(written(folder, training(10), evaluation(10, 0.75), evaluation(20, 0.5), end(20)))
    assert "50.00% (best 75.00% at epoch 1)" in shown
    assert "30 s" in shown
    assert "10% of the time waiting" in shown
    assert "estimated" not in shown


def test_the_summary_shows_the_error_of_the_estimate_of_this_config(folder: RunFolder, tmp_path: Path) -> None:
    config = replace(CONFIG, runs=str(tmp_path))
    path = save_estimate(config, {clock: {"seconds": 33.0} for clock in ("training", "evaluation", "saving")})
    chosen = replace(config, run_name="chosen")
    assert "estimated" not in summary(written(folder, end(10, finished=False)), chosen)
    assert "training 33 s (+10.0%), evaluation 33 s (+725.0%)" in summary(written(folder, end(20)), chosen)
    assert "estimated" not in summary(folder, replace(config, epochs=config.epochs + 1))
    for text in ("{", "[]", '{"training": null}'):
        path.write_text(text)
        assert "estimated" not in summary(folder, chosen)


@pytest.mark.parametrize(("min_delta", "gain"), [(0.0, "a gain"), (0.25, "a gain of more than 0.25")])
def test_a_run_without_patience_shows_the_gain_that_it_missed(folder: RunFolder, min_delta: float, gain: str) -> None:
    config = replace(CONFIG, stop=replace(CONFIG.stop, patience=2, min_delta=min_delta))
    records = [evaluation(step, 0.5) for step in (10, 20, 30)]
    shown = summary(written(folder, *records, replace(end(30), ended_by="stop.patience")), config)
    assert f"2 evaluations in a row without {gain} in top-1" in shown


@pytest.mark.parametrize("points", [0, 1, 30])
def test_the_curve_is_drawn_for_any_number_of_points(folder: RunFolder, points: int) -> None:
    records = [r for step in range(1, points + 1) for r in (training(step), evaluation(step))]
    path = draw_curve(written(folder, *records, training(points + 1, float("nan"))), CONFIG.task, "a title")
    with Image.open(path) as image:
        assert image.size == (960, 720)
    assert not list(folder.path.glob("*.tmp*"))


def test_the_last_warning_of_each_title_is_shown_also_of_earlier_versions() -> None:
    warning = {"kind": "warning", "title": "slow rank", "rank": 1, "host": "a", "step": 9, "text": "rank 1 is slow"}
    rows = [warning, {**warning, "step": 12}, {"kind": "warning", "title": "slow data", "step": 9, "text": "it waits"}]
    assert last_warnings(rows) == [("slow rank", "rank 1 is slow (step 12)"), ("slow data", "it waits (step 9)")]
