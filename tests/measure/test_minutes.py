"""`stop.minutes` before a run: the most epochs that fit by a measurement, and what is refused."""

from functools import partial
from pathlib import Path

import pytest

from launcher.config.resolved import read, write
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.launch.devices import Devices
from launcher.launch.prepare import Prepared
from launcher.launch.start import _check_same
from launcher.measure import launch
from launcher.measure.estimate import EvaluationTimes
from launcher.measure.launch import config_in_time
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder
from tests.commands import refused
from tests.configs import composed, with_values
from tests.measurements import measured
from tests.runs import SMALL, Train

# Ten epochs of ten steps, an evaluation after every third and a checkpoint after every fifth of them.
TEN = with_values(
    composed("dataset=shapes", "algorithms=[]", "launch=cpu"),
    {
        **{"epochs": 10, "batch_size": 32, "dataset.train_samples": 320, "dataset.val_samples": 64},
        **{"eval_every": "3ep", "checkpoint.every": "5ep", "eval_batch_size": 64, "schedule.warmup": "0ba"},
    },
)


def in_time(minutes: float, monkeypatch: pytest.MonkeyPatch, config: RunConfig = TEN) -> RunConfig:
    """Return the config for steps of 0.1 s, evaluations of 2 s, checkpoints of 3 s and a start of 5 s."""
    config = with_values(config, {"stop.minutes": minutes})
    plan, evaluation = plan_for(config, 1), EvaluationTimes(0.0, [0.0], [2.0, 2.0], 1)
    seconds = {"save_seconds": [3.0], "last_save_seconds": 3.0, "start_seconds": 5.0}
    times = measured(plan, lambda _: 0.1, 0.0, evaluation=evaluation, **seconds)
    monkeypatch.setattr(launch, "measure_steps", lambda *_: times)
    return config_in_time(Prepared(plan, Devices("cpu", 1)))


def epochs_in(minutes: float, monkeypatch: pytest.MonkeyPatch, config: RunConfig = TEN) -> int:
    return plan_for(in_time(minutes, monkeypatch, config), 1).epochs


@pytest.mark.parametrize(
    ("seconds", "epochs"),
    # note: an epoch has a second, with an evaluation and a checkpoint 6; four have two evaluations
    [(6.01, 1), (8.01, 3), (10.99, 3), (11.01, 4), (23.99, 9), (24.01, 10), (1000, 10)],
)
def test_the_most_epochs_fit_whose_steps_evaluations_and_checkpoints_end_in_time(
    seconds: float, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert epochs_in(seconds / 60, monkeypatch) == epochs
    dilated = with_values(TEN, {"epochs": 40, "schedule.dilate": 0.25})
    assert epochs_in(seconds / 60, monkeypatch, dilated) == epochs


def test_too_few_minutes_are_refused_with_how_many_an_epoch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"stop.minutes=0.05: is too short for an epoch; set at least 0.1"):
        epochs_in(0.05, monkeypatch)


def test_a_plan_of_several_nodes_is_refused_as_its_run() -> None:
    words = [
        "recipe=none",
        "stop.minutes=1",
        "launch.nnodes=2",
        "dataset=shapes",
        "run_name=a",
        "launch.rdzv=127.0.0.1:29400",
    ]
    for verb in ("plan", "run"):
        assert "stop.minutes=1.0: is measured on one node" in refused(verb, *words)


@pytest.mark.system
def test_a_run_writes_the_epochs_that_fit_and_a_resume_keeps_them(train: Train) -> None:
    words = [*SMALL, "epochs=5000", "eval_every=1dur", "checkpoint.every=1dur", "run_name=timed", "stop.minutes=0.2"]
    plan = train("plan", *words).stdout
    assert "checked at the start: the epochs that fit in stop.minutes=0.2" in plan
    output = train(*words).stdout
    folder = train.folder / "runs" / "timed"
    config = read(folder / "config.yaml")
    fitting = plan_for(config, 1).epochs
    assert 0 < fitting < 5000
    assert f"stop.minutes=0.2: {fitting} of 5,000 epochs fit by the time of measured steps" in output
    assert f"schedule.dilate={config.schedule.dilate}" in output
    train("resume", "runs/timed", "stop.minutes=30")
    longer = read(folder / "config.yaml")
    assert (longer.stop.minutes, longer.schedule.dilate) == (30, config.schedule.dilate)


@pytest.mark.system
def test_a_measurement_ends_after_the_round_that_passes_a_third_of_the_minutes(train: Train) -> None:
    errors = train(*SMALL, "run_name=late", "stop.minutes=0.001", code=2).stderr
    assert "is too short for an epoch" in errors
    assert [f"round {number} of 4" in errors for number in (1, 2)] == [True, False]


@pytest.mark.parametrize(("minutes", "joins"), [(5, True), (None, False)])
def test_a_run_to_join_has_the_length_that_was_measured_at_its_start(
    minutes: float | None, joins: bool, tmp_path: Path
) -> None:
    before = with_values(TEN, {"stop.minutes": minutes, "schedule.dilate": 0.5})
    write(before, tmp_path / "config.yaml")
    check = partial(_check_same, with_values(before, {"schedule.dilate": 0.7}), RunFolder(tmp_path))
    if joins:
        check()
    else:
        with pytest.raises(UserError, match=r"other values of schedule\.dilate"):
            check()
