"""`dataloader.write_missing`: a run writes FFCV files while it trains, and has the bits of one that finds them."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launcher.config.resolved import read
from launcher.data.ffcv import unfinished
from launcher.data.ffcv.beton import open_beton
from launcher.records.run_folder import RunFolder
from launcher_lab.predict.prediction import efficiencies
from tests.counted_steps import worthwhile
from tests.images import write_images
from tests.runs import (
    Train,
    draw_nothing,
    kill_all,
    results,
    same,
    slow_down,
    steps_done,
    use_tiny,
    wait_for,
)

pytestmark = pytest.mark.system

WORDS = [
    *("recipe=mild", "model=resnet18", "epochs=3", "batch_size=16", "eval_batch_size=16", "schedule.fit=on"),
    *("dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader=ffcv"),
    *("dataloader.workers=1", "dataloader.write_missing=true", "launch=cpu", "launch.nproc=2", "algorithms.ema=off"),
    *("logger.tensorboard=false", "logger.interval=1ba", "checkpoint.every=2ba", "launch.hang_timeout=60"),
]
PREPARE = ["prepare", "dataset=image_folder", "dataset.path=images"]


@pytest.fixture
def images(train: Train) -> Path:
    return write_images(train.folder / "images", {"train": 104, "val": 9})


def killed(train: Train, run: Path, *words: str, after: int) -> None:
    """Kill all processes of a command of a run after a step."""
    process = replace(train, before=(use_tiny, draw_nothing, slow_down)).start(*words)
    wait_for(lambda: process.poll() is not None or steps_done(run) >= after)
    kill_all(process, run)


def test_a_run_killed_five_times_in_its_first_epoch_has_the_bits_of_one_whose_files_are_there(
    train: Train, images: Path
) -> None:
    run, whole = (train.folder / "runs" / name for name in ("killed", "whole"))
    killed(train, run, *WORDS, "run_name=killed", after=2)
    for step in (4, 6, 8, 10):
        killed(train, run, "resume", str(run), after=step)
        assert not list((images / "ffcv").glob("*.beton"))
    train("resume", str(run))
    train(*PREPARE)
    assert {path.suffix for path in (images / "ffcv").iterdir()} == {".beton", ".json"}
    train(*PREPARE, "--check")
    train(*WORDS, "run_name=whole")
    assert same(train.decided(run), train.decided(whole))
    assert results(run)[-1] == results(whole)[-1]


def place_slowly() -> None:
    """Make `train prepare` take at least 20 ms an image."""
    place = unfinished.UnfinishedFile.place

    def slowly(*arguments: object) -> None:
        time.sleep(0.02)
        place(*arguments)  # type: ignore[arg-type]

    unfinished.UnfinishedFile.place = slowly  # type: ignore[assignment,method-assign]


def stored(folder: Path) -> int:
    """Return how many training images an unfinished file has."""
    for table in folder.glob("train*.table"):
        rows = np.fromfile(table, unfinished._STORED, offset=unfinished._HEAD.itemsize)
        return int(rows["digest"].any(axis=1).sum())
    return 0


def prepare_killed(train: Train, run: Path, folder: Path, more: int) -> None:
    """Kill `train prepare` once it has stored so many more images."""
    before = stored(folder)
    process = replace(train, before=(place_slowly,)).start(*PREPARE, "dataloader.workers=1")
    wait_for(lambda: stored(folder) >= before + more)
    kill_all(process, run)
    assert not list(folder.glob("*.beton"))


def test_a_run_and_train_prepare_each_continue_what_the_other_stored_before_it_was_killed(
    train: Train, images: Path
) -> None:
    run, whole, folder = train.folder / "runs" / "killed", train.folder / "runs" / "whole", images / "ffcv"
    prepare_killed(train, run, folder, more=20)
    killed(train, run, *WORDS, "run_name=killed", after=3)
    after_run = stored(folder)
    assert after_run > 40
    prepare_killed(train, run, folder, more=20)
    killed(train, run, "resume", str(run), after=6)
    assert stored(folder) > after_run + 20
    train("resume", str(run))
    train(*PREPARE)
    assert {path.suffix for path in folder.iterdir()} == {".beton", ".json"}
    for path in folder.glob("*.beton"):
        pieces = open_beton(path).pieces
        assert (pieces["place"][1:] == pieces["place"][:-1] + pieces["size"][:-1]).all(), "an image was stored twice"
    train(*PREPARE, "--check")
    train(*WORDS, "run_name=whole")
    assert same(train.decided(run), train.decided(whole))
    assert results(run)[-1] == results(whole)[-1]


def fast_threads() -> None:
    """Predict that ranks write in no time while they train."""
    efficiencies()["prepare"]["threads"] = 1e9


def test_auto_writes_while_training_where_that_ends_earliest_and_resumes_and_other_seeds_do_the_same(
    train: Train, images: Path
) -> None:
    words = [
        *("dataloader=auto" if word == "dataloader=ffcv" else word for word in WORDS if "write_missing" not in word)
    ]
    gpu = replace(train, around=(worthwhile, fast_threads))
    line = "so they are written while the first epoch trains"
    assert line in gpu("doctor", *words).stdout
    killed(gpu, run := train.folder / "runs" / "run", *words, "run_name=run", after=4)
    config = read(RunFolder(run).config)
    assert config.dataloader.write_missing  # type: ignore[attr-defined]
    assert line in gpu(*words, "run_name=other", "seed=7", "epochs=1").stdout
    gpu("resume", str(run))
    gpu(*WORDS, "run_name=whole")
    assert same(train.decided(run), train.decided(train.folder / "runs" / "whole"))


def test_a_full_disk_is_one_line_and_changes_no_bit(train: Train, images: Path, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(20_700_000))
    folder, run = f"dataloader.folder={small_disk}", train.folder / "runs" / "full"
    train(*WORDS, folder, "run_name=full")
    logs = "".join(log.read_text() for log in (run / "logs").glob("rank-*.log"))
    assert logs.count("images are encoded again in each epoch, not stored: ") == 1
    assert "No space left on device" in logs
    assert not list(small_disk.glob("train*"))
    (small_disk / "other").unlink()
    train(*PREPARE, folder)
    train(*WORDS, folder, "run_name=whole")
    assert same(train.decided(run), train.decided(train.folder / "runs" / "whole"))
