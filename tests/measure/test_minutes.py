"""`stop.minutes` before a run: the most epochs that fit by a measurement, and what is refused."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.resolved import read, write
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.launch import new_run
from launcher.launch.devices import Devices
from launcher.launch.new_run import _in_time
from launcher.launch.prepare_run import Measures, Prepared
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


def in_time(
    minutes: float, monkeypatch: pytest.MonkeyPatch, config: RunConfig = TEN, ends: float | None = None
) -> RunConfig:
    """Return the config for steps of 0.1 s, evaluations of 2 s, checkpoints of 3 s and a start of 5 s."""
    config = with_values(config, {"stop.minutes": minutes})
    plan, evaluation = plan_for(config, 1), EvaluationTimes(0.0, [0.0], [2.0, 2.0], 1)
    seconds = {"save_seconds": [3.0], "last_save_seconds": 3.0, "start_seconds": 5.0}
    times = measured(plan, lambda _: 0.1, 0.0, evaluation=evaluation, **seconds)
    monkeypatch.setattr(launch, "measure_steps", lambda *_: times)
    return config_in_time(Prepared(plan, Devices("cpu", 1)), ends)


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
    # note: an epoch has 6 s, and 3 s are half of its pixels
    with pytest.raises(UserError, match=r"set at least 0.1, or smaller images, such as dataset.native_size=44$"):
        epochs_in(0.05, monkeypatch)
    with pytest.raises(UserError, match=r"set at least 0.1$"):
        epochs_in(0.01, monkeypatch)


@pytest.mark.parametrize(
    ("fitting", "sizes"),
    [
        (2, "; 5 epochs of dataset.native_size=40 or 10 epochs of dataset.native_size=28 would"),
        (7, "; 10 epochs of dataset.native_size=52 would"),
        (10, ""),
    ],
)
def test_smaller_images_of_which_more_epochs_fit_are_named(
    fitting: int, sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_values(TEN, {"stop.minutes": 1.0, "schedule.dilate": fitting / 10})
    whole = Prepared(plan_for(TEN, 1), Devices("cpu", 1))
    monkeypatch.setattr(new_run, "read_mapping", lambda _: {"epochs": [10, 200], "least_size": 28, "size_multiple": 4})
    (note,) = [note for note in _in_time(whole, {}, config, 64).notes if note.startswith("stop.minutes")]
    assert sizes in note
    assert ("may have a higher top-1" in note) == bool(sizes)
    on_gpus = replace(whole, devices=Devices("cuda", 1))
    assert not any("native_size" in note for note in _in_time(on_gpus, {}, config, 64).notes)


@pytest.mark.parametrize(
    ("seconds", "size"),
    # note: ten epochs of 32 px have 24 s
    [(24.01, 32), (3.0, 32), (98.0, 64), (56.0, 48)],
)
def test_a_size_is_that_of_which_the_fewest_epochs_fit_by_its_pixels(
    seconds: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_values(TEN, {"stop.minutes": seconds / 60, "dataset.native_size": 32})
    in_time(1, monkeypatch)
    assert launch.size_in_time(Prepared(plan_for(config, 1), Devices("cpu", 1)), None) == size


@pytest.mark.parametrize(("fits", "size"), [(32, 32), (48, 48), (80, 64)])
def test_a_run_that_may_shrink_is_prepared_at_the_size_that_fits(fits: int, size: int, tmp_path: Path) -> None:
    words = ["recipe=small", "dataset=shapes", "dataset.native_size=64", "launch=cpu", "stop.minutes=1"]
    timed, measured_at = replace(compose([*words, f"runs={tmp_path}"]), may_shrink=True), list[int]()

    def size_in_time(prepared: Prepared, _: float | None) -> int:
        measured_at.append(prepared.plan.config.dataset.native_size)
        return fits

    measures = Measures(lambda *_: 1, lambda prepared, _: prepared.plan.config, size_in_time)
    prepared = new_run.prepare_new(timed, measures=measures)
    assert (prepared.plan.config.dataset.native_size, measured_at) == (size, [32])
    assert any("images of 64 px become smaller" in note for note in prepared.notes) == (size < 64)


def test_a_run_of_smaller_images_is_noted_with_the_sizes_beside_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_run, "read_mapping", lambda _: {"epochs": [10, 200], "least_size": 28, "size_multiple": 4})
    config = with_values(TEN, {"stop.minutes": 1.0, "schedule.dilate": 0.8, "dataset.native_size": 40})
    whole = Prepared(plan_for(with_values(TEN, {"dataset.native_size": 40}), 1), Devices("cpu", 1))
    (note,) = [note for note in _in_time(whole, {}, config, 64).notes if note.startswith("stop.minutes")]
    assert "images of 64 px become smaller, so that more epochs fit: 8 of 10 epochs fit" in note
    assert "to repeat: dataset.native_size=40 schedule.dilate=0.8; 10 epochs of dataset.native_size=32 or" in note
    assert "or 4 epochs of dataset.native_size=56 would take as long" in note
    assert note.endswith("no top-1 of them is known")


@pytest.mark.parametrize(("seconds", "epochs"), [(24.02, 10), (10.99, 3)])
def test_a_command_that_must_end_trains_in_what_is_left_after_the_starts(
    seconds: float, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.time, "monotonic", lambda: 100.0)
    config = in_time(1, monkeypatch, ends=110 + seconds)
    assert (plan_for(config, 1).epochs, config.stop.minutes) == (epochs, round(seconds / 60, 3))
    # note: 2 s are left of the minute, and an epoch takes 6
    with pytest.raises(UserError, match=r"budget=1min: is too short for an epoch; set at least 1\.1min"):
        in_time(1, monkeypatch, ends=112)
    with pytest.raises(UserError, match=r"budget=6s: is too short for an epoch; set at least 24s"):
        in_time(0.1, monkeypatch, ends=102)


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
