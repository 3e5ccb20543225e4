import csv
import json
import signal
import statistics
import time
from dataclasses import replace

import pytest

from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from tests.grids import fork_runs, have_two_cores
from tests.images import write_images
from tests.runs import SMALL, Train, ended, processes_of, same, slow_down, steps_done, wait_for

pytestmark = pytest.mark.system

GRID = [
    *("curve", "recipe=mild", "epochs=3,4", "launch.nproc=1"),
    *(word for word in SMALL if not word.startswith(("recipe=", "epochs=", "schedule.", "launch.nproc="))),
]


@pytest.fixture
def train(train: Train) -> Train:
    """Run steps slowly enough to be stopped."""
    return replace(train, before=(*train.before, slow_down))


def test_a_stopped_grid_resumes_finishes_and_makes_a_curve(train: Train) -> None:
    runs = [train.folder / "runs" / f"mild-shapes-{epochs}ep-seed42" for epochs in (3, 4)]
    train = replace(train, around=(fork_runs,))
    process = train.start(*GRID)
    end = time.monotonic() + 120
    while not any(row["kind"] == "eval" for row in read_metrics(runs[0] / "metrics.jsonl")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = ended(process, 143)
    assert "run the same command to continue" in output
    assert not runs[1].exists()

    assert "2 finished" in train(*GRID).stdout
    for run, epochs in zip(runs, (3, 4), strict=True):
        rows = read_metrics(run / "metrics.jsonl")
        assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == list(range(1, epochs + 1))
        assert rows[-1]["finished"]
    assert "2 already finished" in train(*GRID).stdout
    shown = train("compare", "runs").stdout
    assert shown.count("mild ") >= 2
    assert "excluded runs" not in shown


def test_runs_at_once_stop_together_resume_and_compute_what_they_compute_one_after_another(train: Train) -> None:
    words = [word.replace("epochs=3,4", "epochs=4") for word in GRID] + ["seed=0,1"]
    train = replace(train, around=(fork_runs, have_two_cores))
    process = train.start(*words, "--parallel", "2", "runs=at_once")
    at_once, after = (
        [train.folder / name / f"mild-shapes-4ep-seed{seed}" for seed in (0, 1)] for name in ("at_once", "after")
    )
    wait_for(lambda: all(map(steps_done, at_once)))
    process.send_signal(signal.SIGTERM)
    output, _ = ended(process, 143)
    assert output.count(" on core ") == 2
    assert "run the same command to continue" in output
    assert [bool(RunFolder(run).newest_step()) for run in at_once] == [True, True]
    assert "2 finished" in train(*words, "--parallel", "2", "runs=at_once").stdout
    assert "2 finished" in train(*words, "runs=after").stdout
    for first, second in zip(at_once, after, strict=True):
        assert same(train.decided(first), train.decided(second))


def test_the_error_of_a_run_at_once_is_printed_and_others_go_on(train: Train) -> None:
    words = [word.replace("epochs=3,4", "epochs=1") for word in GRID]
    train = replace(train, around=(fork_runs, have_two_cores))
    output = train(*words, "schedule.warmup=0ba", "seed=7,0,1", "--parallel", "2", code=1).stdout
    assert "seed7 failed\n    error: the disk is full\n" in output
    assert sorted(output.splitlines()[-2].split(", ")) == ["1 failed", "2 finished"]


def test_a_killed_grid_makes_its_run_save_and_stop(train: Train) -> None:
    run = train.folder / "runs" / "mild-shapes-300ep-seed42"
    process = train.start(*(word.replace("epochs=3,4", "epochs=300,400") for word in GRID))
    wait_for(lambda: steps_done(run) > 0)
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run))
    assert RunFolder(run).newest_step() == steps_done(run)
    assert [path.name for path in run.parent.iterdir()] == [run.name]


def test_the_folds_of_a_sweep_are_one_point_with_mean_and_deviation(train: Train) -> None:
    images = write_images(train.folder / "images", {"": 8}, size=(32, 32))
    words = [word for word in SMALL if not word.startswith(("dataset", "epochs=", "launch.nproc="))]
    words += ["dataset=image_folder", f"dataset.path={images}", "dataset.native_size=32", "epochs=1", "launch.nproc=1"]
    words += ["dataset.folds=2", "dataset.fold=all", "batch_size=4"]
    output = replace(train, around=(fork_runs,))("curve", *words).stdout
    assert "2 finished" in output, output
    (table,) = (train.folder / "runs").glob("*-out_of_fold.csv")
    rows = {row["file"]: row for row in csv.DictReader(table.open()) if row["rank"] == "1"}
    assert sorted(rows) == sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    assert all(row["label"] == file.split("/")[0] for file, row in rows.items())
    assert str(table.name) in output
    folders = sorted(path.name for path in (train.folder / "runs").iterdir() if path.is_dir())
    assert ["dataset.fold=1" in name or "dataset.fold=2" in name for name in folders] == [True, True]
    document = json.loads(train("compare", "runs", "--json").stdout)
    (point,) = document["points"]
    assert point["seeds"] == 2
    last = [read_metrics(path / "metrics.jsonl") for path in (train.folder / "runs").iterdir() if path.is_dir()]
    values = [100 * [row for row in rows if row["kind"] == "eval"][-1]["metrics"]["top1"] for rows in last]
    assert point["top1_mean"] == pytest.approx(statistics.fmean(values))
    assert point["top1_deviation"] == pytest.approx(statistics.stdev(values))
    lacking = train("curve", *(word for word in words if word != "dataset.folds=2"), code=2)
    assert "dataset.fold=all" in lacking.stderr
