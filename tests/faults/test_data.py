"""Missing images, a stalled disk, killed loader workers and full shared memory during a run."""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from launcher.records.metrics import read_metrics
from tests.data.conftest import write_files
from tests.images import write_images
from tests.runs import SHORT, Here, Train, ended, loader_workers_of, processes_of, steps_done, wait_for

pytestmark = pytest.mark.system

FOLDER = [
    *(word for word in SHORT if not word.startswith("dataset")),
    *("dataset=image_folder", "dataset.path=images", "dataset.native_size=32"),
    *("epochs=1000", "eval_every=1000ep", "run_name=run"),
]
_MOUNTS = 0x20000  # CLONE_NEWNS of the kernel
NO_MOUNT = 77
WITH_WORKERS = [*FOLDER, "dataloader.workers=1"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of eight images: a step on two ranks."""
    return write_images(tmp_path / "images", {"train": 8, "val": 8}, size=(40, 48))


def unwrapped(output: str) -> str:
    return " ".join(output.split())


@contextmanager
def leased(file: Path) -> Iterator[None]:
    """Make other processes that open the file wait, for 45 s at most, until its holder gives up the lease."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with file.open("r+b") as held:
        wait_for(lambda: is_leased(held.fileno()))
        yield
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)


def is_leased(descriptor: int) -> bool:
    """Take a lease; return False if another process has the file open."""
    with suppress(BlockingIOError):
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    return False


def test_a_run_survives_a_killed_worker_and_a_stall_but_not_a_missing_image(train: Train, images: Path) -> None:
    output = train.folder / "output.txt"
    with output.open("w") as file:
        process = train.start(*WITH_WORKERS, "launch.hang_timeout=8", stdout=file, stderr=file)
    run = train.folder / "runs" / "run"

    wait_for(lambda: steps_done(run) >= 5)
    killed = loader_workers_of(run)[0]
    killed.kill()
    wait_for(lambda: "restarting from the newest checkpoint (1 of 3)" in output.read_text())
    assert f"(process {killed.pid}) was killed by SIGKILL; usually out of memory" in output.read_text()

    before = steps_done(run)
    wait_for(lambda: steps_done(run) > before + 2)
    image = images / "train" / "dog" / "3.jpg"
    with leased(image):
        warning = f"is waiting to read {image}; check that its disk or bucket responds"
        wait_for(lambda: warning in unwrapped(output.read_text()))
        assert process.poll() is None
        image.unlink()

    ended(process, 2)
    error = (
        f"error: {image} cannot be read as an image (No such file or directory); repair or remove it "
        "(train doctor lists all such files; dataset.skip_bad=true skips them in a new run)"
    )
    assert output.read_text().endswith(f"{error}\n")
    assert "Traceback" not in output.read_text()
    wait_for(lambda: not processes_of(run))


def test_an_ffcv_file_may_be_removed_but_not_truncated(train: Train, images: Path) -> None:
    write_files(images)
    process = train.start(*WITH_WORKERS, "dataloader=ffcv", "launch.nproc=1")
    run = train.folder / "runs" / "run"
    file = next((images / "ffcv").glob("train*.beton"))
    other = train.folder / "other.beton"
    other.hardlink_to(file)
    wait_for(lambda: steps_done(run) >= 2)
    file.unlink()
    before = steps_done(run)
    wait_for(lambda: steps_done(run) > before + 4)
    os.truncate(other, other.stat().st_size // 2)
    output, errors = ended(process, 2)
    assert errors == f"error: {file} changed during the run; run train prepare again\n"
    assert "Traceback" not in output
    wait_for(lambda: not processes_of(run))


def have_little_shared_memory() -> None:
    """Mount a small /dev/shm for this process alone; exit with NO_MOUNT if that fails."""
    commands = ("mount --make-rprivate /", "mount -t tmpfs -o size=64k tmpfs /dev/shm")
    mounted = ctypes.CDLL(None).unshare(_MOUNTS) == 0
    if not (mounted and all(subprocess.run(command.split(), check=False).returncode == 0 for command in commands)):
        os._exit(NO_MOUNT)


@pytest.mark.skipif(os.getuid() != 0 or sys.platform != "linux", reason="a mount needs root")
def test_full_shared_memory_is_one_error(train: Train, images: Path) -> None:
    process = replace(train, around=(have_little_shared_memory,)).start(*WITH_WORKERS, "launch.nproc=1")
    output, errors = process.communicate(timeout=200)
    if process.returncode == NO_MOUNT:
        pytest.skip(f"no file system can be mounted here: {errors.strip()}")
    assert process.returncode == 2
    assert errors.startswith("error: dataloader.workers=1: shared memory is full: /dev/shm has 0.0 of 0.1 MB free")
    assert errors.count("\n") == 1
    assert "Traceback" not in output
    wait_for(lambda: not processes_of(train.folder / "runs" / "run"), 10)


def test_a_run_that_resumes_with_changed_images_prints_a_note_and_is_not_compared(here: Here, images: Path) -> None:
    run = here.folder / "runs" / "run"
    here(*FOLDER, "epochs=2", "launch.nproc=1")
    images = images.rename(here.folder / "moved")
    assert "images have changed" not in unwrapped(here("resume", str(run), "dataset.path=moved", "epochs=3").stdout)
    assert "another data set" not in here("compare", str(run)).stdout
    with (images / "train" / "dog" / "4.jpg").open("ab") as file:
        file.write(b"a byte more")
    os.utime(images / "train" / "dog")
    output = unwrapped(here("resume", str(run), "epochs=4").stdout)
    assert "note: the names or sizes of the images have changed" in output
    assert "a resume used another data set" in here("compare", str(run)).stdout


def test_skipped_images_and_the_validation_split_stay_the_same_in_eval_and_resume(here: Here, images: Path) -> None:
    run, bad = here.folder / "runs" / "run", ["cat/cut.jpg", "dog/text.png"]
    shutil.rmtree(images / "val")
    for name in ("cat", "dog"):
        (images / "train" / name).rename(images / name)
        for number in (6, 7):
            (images / name / f"{number}.jpg").unlink()
    (images / "train").rmdir()
    (images / bad[0]).write_bytes((images / "cat" / "0.jpg").read_bytes()[:300])
    (images / bad[1]).write_text("no image")
    choice = ["dataset.val_split=0.2", "dataset.skip_bad=true", "batch_size=4", "eval_every=1ep", "schedule.warmup=1ba"]
    choice += ["epochs=1", "launch.nproc=1"]
    output = unwrapped(here(*FOLDER, *choice).stdout)
    assert "skipping 2 images that cannot be decoded" in output
    assert "dataset.val_split=0.2: holding out 2 of 12 images" in output
    lists = {file: (run / file).read_bytes() for file in ("skipped.json", "dataset.json")}
    assert {*json.loads(lists["skipped.json"])} == {*bad}
    # note: now they can be read, which would add a step to each epoch; the run still follows its list
    for name in bad:
        Image.new("RGB", (40, 48)).save(images / name)
    assert json.loads(here("eval", str(run), "--json").stdout)["samples"] == 2
    output = unwrapped(here("resume", str(run), "epochs=2").stdout)
    assert "2 epochs of 2 steps" in output
    assert "images have changed" not in output
    assert {file: (run / file).read_bytes() for file in lists} == lists
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["samples"] for row in rows if row["kind"] == "eval"] == [2, 2]
    assert [row["step"] for row in rows if row["kind"] == "epoch"] == [2, 4]
