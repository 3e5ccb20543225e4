"""`dataloader=ffcv` without files writes them first; `dataloader=auto` prints what files would save."""

import os
import shlex
import shutil
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.resolved import read
from launcher.launch import files_first
from launcher.records.run_folder import RunFolder
from tests.runs import Train, ended, processes_of, same, wait_for

pytestmark = pytest.mark.system

RUN = [
    *("recipe=mild", "model=resnet18", "epochs=2", "batch_size=100", "eval_batch_size=4", "schedule.fit=on"),
    *("dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader.workers=1"),
    *("launch=cpu", "launch.nproc=1", "logger.tensorboard=false", "algorithms.ema=off"),
]
FILES = [*RUN, "dataloader=ffcv"]
PREPARE = ["prepare", "dataset=image_folder", "dataset.path=images"]


@pytest.fixture
def images(train: Train) -> Path:
    """Write class folders of many links to one image, which takes 0.2 MB in files."""
    one, folder = train.folder / "one.jpg", train.folder / "images"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)).save(one)
    for split, count in (("train", 400), ("val", 4)):
        for number in range(count):
            place = folder / split / f"class{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            os.link(one, place / f"{number}.jpg")
    return folder


def loader_of(train: Train, run: str) -> str:
    return str(read(RunFolder(train.folder / "runs" / run).config).dataloader.name)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_run_killed_while_it_writes_continues_and_has_the_bits_of_one_whose_files_were_there(
    train: Train, images: Path
) -> None:
    folder = images / "ffcv"
    for number, size in ((signal.SIGTERM, 1e7), (signal.SIGKILL, 3e7)):
        process = train.start(*FILES, "run_name=run")
        wait_for(lambda size=size: any(one.stat().st_size > size for one in folder.glob("train*.partial")))
        process.send_signal(number)
        output, _ = process.communicate(timeout=100)
        assert f"writing the FFCV files in {folder} first; if it is stopped, the same command continues" in output
        wait_for(lambda: not processes_of(train.folder / "runs" / "none"))
        assert not (train.folder / "runs").exists()
        assert not list(folder.glob("*.beton"))
    assert "is written" in train(*FILES, "run_name=run").stdout
    files = written(folder)
    assert {Path(name).suffix for name in files} == {".beton", ".json"}
    train(*PREPARE, "dataloader.folder=uninterrupted")
    # note: images are stored in the order in which workers have encoded them
    assert files.keys() == written(train.folder / "uninterrupted").keys()
    assert "writing" not in train(*FILES, "run_name=whole", "dataloader.folder=uninterrupted").stdout
    runs = train.folder / "runs"
    assert same(train.decided(runs / "run"), train.decided(runs / "whole"))
    shutil.rmtree(folder)
    assert "writing the FFCV files" in train("resume", "runs/run", "epochs=3").stdout
    train("resume", "runs/whole", "epochs=3")
    assert same(train.decided(runs / "run"), train.decided(runs / "whole"))


def test_plan_and_estimate_print_that_a_run_writes_first_and_write_nothing(train: Train, images: Path) -> None:
    assert f"the FFCV files in {images}/ffcv are missing, and the run writes them first: some" in "".join(
        train("plan", *FILES).stdout.splitlines()
    )
    assert "the run writes them first" in train("doctor", *FILES).stdout
    refused = train("estimate", *FILES, code=2).stderr
    assert "does not exist; a run writes it first, or type: train prepare dataset=image_folder" in refused
    assert not (images / "ffcv").exists()


def test_two_nodes_write_once(train: Train, images: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        words = [*FILES, "launch.nnodes=2", f"launch.rdzv=127.0.0.1:{free.getsockname()[1]}", "run_name=both"]
    first = train.start(*words)
    wait_for(lambda: any((images / "ffcv").glob("train*.partial")))
    second = train.start(*words)
    outputs = [ended(one)[0] for one in (first, second)]
    assert f"process {first.pid} on " in outputs[1]
    assert f"writes FFCV files in {images}/ffcv; waiting for them" in outputs[1]
    assert ["writing the FFCV files" in output for output in outputs] == [True, False]


def test_a_full_disk_and_an_image_that_cannot_be_decoded_end_the_run_before_it_starts(
    train: Train, images: Path, small_disk: Path
) -> None:
    errors = train(*FILES, f"dataloader.folder={small_disk}", code=2).stderr
    assert "No space left on device" in errors
    assert "finished images are kept: run the same command to resume" in errors
    (images / "train" / "class0" / "broken.jpg").write_bytes(b"no image")
    errors = train(*FILES, code=2).stderr
    assert "1 of 401 images" in errors
    assert "skip them by dataset.skip_bad=true" in errors
    assert not (train.folder / "runs").exists()
    train(*FILES, "run_name=skipped", "dataset.skip_bad=true")
    assert loader_of(train, "skipped") == "ffcv"


def note_all() -> None:
    """Note files that save any time."""
    files_first._NOTED = 0


def test_auto_writes_nothing_prints_what_files_would_save_and_reads_those_that_are_there(
    train: Train, images: Path
) -> None:
    train.around = (note_all,)
    few, many = train(*RUN, "run_name=few").stdout, train("plan", *RUN, "epochs=50").stdout
    assert "train prepare" not in few
    assert loader_of(train, "few") == "torchvision"
    assert not (images / "ffcv").exists()
    (line,) = [line for line in many.splitlines() if "train prepare" in line]
    assert "reading the images: to load 50 epochs takes" in line
    assert "from FFCV files, which take some" in line
    command = line.rpartition(": ")[2]
    assert command in train("doctor", *RUN, "epochs=50").stdout
    assert "train prepare" not in train("plan", *RUN, "epochs=50", "dataloader=torchvision").stdout
    train(*shlex.split(command)[1:])
    assert "reading the FFCV files in images/ffcv; " in train("plan", *RUN).stdout
    train(*RUN, "run_name=more")
    assert loader_of(train, "more") == "ffcv"
