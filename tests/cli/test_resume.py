"""`train resume`: which run it selects, and which words change it."""

import fcntl
import os
from pathlib import Path

import pytest

from launcher.cli.resume import newest_unfinished
from launcher.config import resolved
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.launch.start import Ended
from launcher.records.run_folder import RunFolder
from tests.commands import output_of, refused
from tests.images import write_images
from tests.made_runs import MakeRun
from tests.runs import SMALL, Here


def complete(folder: Path) -> Path:
    """Write a complete config into a made run."""
    resolved.write(compose(["launch=cpu"]).config, folder / "config.yaml")
    return folder


def test_the_newest_run_that_has_not_finished_is_selected(tmp_path: Path, make_run: MakeRun) -> None:
    complete(make_run("done"))
    with pytest.raises(UserError, match=r"no unfinished run in"):
        newest_unfinished(tmp_path)
    for number, (name, finished) in enumerate([("killed", None), ("stopped", False), ("held", None)]):
        os.utime(complete(make_run(name, finished=finished)) / "metrics.jsonl", (number, number))
    with (tmp_path / "held" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert newest_unfinished(tmp_path) == tmp_path / "stopped"
    assert newest_unfinished(tmp_path) == tmp_path / "held"


@pytest.mark.parametrize(
    ("words", "path", "changes"),
    [
        ([], "runs/a", []),
        (["latest"], "runs/a", []),
        (["seed=9"], "runs/a", ["seed=9"]),
        (["latest", "seed=9"], "runs/a", ["seed=9"]),
        (["runs/b=1"], "runs/b=1", []),
        (["b=1", "seed=9"], "b=1", ["seed=9"]),
        (["runs=other"], "other/a", ["runs=other"]),
    ],
)
def test_resume_selects_the_run_of_the_command_line_or_the_newest(
    words: list[str], path: str, changes: list[str], tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[tuple[object, ...]] = []

    def record(folder: RunFolder, *values: object, **_: object) -> Ended:
        resumed.append((str(folder.path), *values))
        return Ended(folder, 0)

    monkeypatch.setattr("launcher.launch.start.resume", record)
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a", "other/a"):
        complete(make_run(name, finished=None))
    (tmp_path / "b=1").symlink_to(make_run("runs/b=1"))
    shown = output_of("resume", *words)
    assert resumed == [(path, changes)]
    assert (f"resuming {path}, the newest unfinished run" in shown) == ("b=1" not in path)


def test_a_key_that_is_gone_is_refused_with_what_to_do(tmp_path: Path, make_run: MakeRun) -> None:
    shown = refused("resume", str(complete(make_run("run", finished=None))), "from_step=3")
    assert "omit it; from_step is gone since version 0.3; delete later files of RUN/checkpoints" in shown


SHORT = [*SMALL, "epochs=1", "schedule.warmup=0ba"]


def test_a_finished_run_shows_its_result_and_how_to_train_longer(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here(*SHORT, "run_name=a run")
    monkeypatch.setattr("launcher.launch.start.prepare", None)
    output = here("resume", "runs/a run").stdout
    assert (
        "runs/a run is finished after 1 epoch; to train longer: train resume 'runs/a run' epochs=2; train com" in output
    )
    assert "top-1" in output
    assert "runs/a run is finished" in here("resume", "runs/a run", "epochs=1").stdout


def test_a_run_that_became_longer_is_not_compared_and_prints_a_note(here: Here) -> None:
    here(*SHORT, "run_name=run")
    note = "note: the run started with 1 epoch and continues to 2, which changes its schedule; train compare does not"
    assert note in here("resume", "runs/run", "epochs=2").stdout
    assert "changed the length, and so the schedule, from 1 to 2 epochs" in here("compare", "runs").stdout


@pytest.mark.parametrize(
    ("word", "remedy"), [("target=top1:0.00001", "target=null"), ("stop.patience=1", "stop.patience=null")]
)
def test_a_run_that_ended_early_shows_the_key_that_ended_it(word: str, remedy: str, here: Here) -> None:
    words = [word, "epochs=4", "eval_every=1ba", *["stop.min_delta=1.0"] * word.startswith("stop")]
    here(*SHORT, "run_name=run", *words)
    assert f"to train longer: train resume runs/run {remedy}\n" in here("resume", "runs/run").stdout


def test_a_run_resumes_from_another_folder(here: Here) -> None:
    images = write_images(here.folder / "images", {"train": 8, "val": 2}, size=(32, 32))
    words = [word for word in SHORT if not word.startswith(("dataset", "batch_size"))]
    words += ["dataset.path=images", "dataset.test_path=images", "dataset.native_size=32", "batch_size=4"]
    here(*words, "run_name=run", stop_after=2, code=143)
    dataset = resolved.read(here.folder / "runs" / "run" / "config.yaml").dataset
    assert (dataset.path, dataset.test_path) == (str(images), str(images))
    other = here.folder / "other"
    other.mkdir()
    Here(other)("resume", "../runs/run", "dataset.path=../images")
    assert resolved.read(here.folder / "runs" / "run" / "config.yaml").dataset.path == f"{other}/../images"


def test_the_name_of_an_existing_run_is_refused_before_all_else(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    (here.folder / "runs" / "run").mkdir(parents=True)
    (here.folder / "runs" / "run" / "config.yaml").touch()
    monkeypatch.setattr("launcher.launch.prepare.inspect_data", None)
    line = here(*SHORT, "run_name=run", code=2).stderr
    assert line == "error: run_name=run: runs/run exists; type train resume runs/run, or set another run_name\n"


@pytest.mark.parametrize("ended", ["finished", "stopped", "killed after a resume"])
def test_a_run_whose_checkpoints_are_lost_does_not_start_again(here: Here, ended: str) -> None:
    words = [*SMALL, "run_name=run", "checkpoint.every=1ba"]
    if ended == "finished":
        here(*words)
    else:
        here(*words, stop_after=2, code=143)
    run = RunFolder(here.folder / "runs" / "run")
    if ended == "killed after a resume":
        here("resume", "runs/run", stop_after=1, code=143)
        lines = run.metrics.read_text().splitlines(keepends=True)
        run.metrics.write_text("".join(lines[:-1]))
    # note: as an empty folder where a disk is not mounted
    for path in run.checkpoints.iterdir():
        path.unlink()
    before = run.metrics.read_bytes()
    refusal = here("resume", "runs/run", code=2).stderr
    assert "runs/run has no checkpoint, but its records have one of step" in refusal
    assert "restore runs/run/checkpoints, or start a new run" in refusal
    assert run.metrics.read_bytes() == before


def test_a_number_of_processes_that_does_not_divide_the_batch_is_refused_with_one_that_does(here: Here) -> None:
    here(*SMALL, "run_name=run", stop_after=2, code=143)
    refusal = here("resume", "runs/run", "launch.nproc=3", code=2).stderr
    assert "batch_size=16: not divisible by 3 processes; set 15 or 18, or launch.nproc=2\n" in refusal


def test_a_run_refuses_fewer_images_and_notes_no_other_data_set(here: Here) -> None:
    images = write_images(here.folder / "images", {"train": 24, "val": 8})
    words = [*(word for word in SMALL if "dataset" not in word), "dataset=image_folder", f"dataset.path={images}"]
    here(*words, "dataset.native_size=32", "run_name=run", stop_after=2, code=143)
    run = RunFolder(here.folder / "runs" / "run")
    before, moved = run.dataset.read_bytes(), images / "train" / "cat" / "0.jpg"
    moved.rename(images / "0.jpg")
    refusal = here("resume", "runs/run", code=2).stderr
    expected = f"dataset.train_samples=48: {images} has 47 for training, and the run 48 images; restore them\n"
    assert refusal == f"error: {expected}"
    assert run.dataset.read_bytes() == before
    (images / "0.jpg").rename(moved)
    here("resume", "runs/run")
    assert run.dataset.read_bytes() == before
    assert run.newest_step() == 9
