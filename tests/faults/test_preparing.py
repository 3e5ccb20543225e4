"""`train prepare` is stopped, and continues with the finished images."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.data.sources.buckets import Bucket, proxy
from tests.images import write_images
from tests.runs import Cold, Train, ended, processes_of, wait_for

pytestmark = pytest.mark.system

IMAGES = 500


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write class folders of many links to one image."""
    one = tmp_path / "one.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)).save(one)
    for split, count in (("train", IMAGES), ("val", 4)):
        for number in range(count):
            folder = tmp_path / "images" / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            os.link(one, folder / f"{number}.jpg")
    return tmp_path / "images"


@pytest.mark.skeleton
def test_preparation_stops_and_continues_to_the_same_bytes(train: Train, images: Path) -> None:
    words = ["prepare", "dataset=image_folder", f"dataset.path={images}", "dataloader.workers=1"]
    folder = train.folder / "files"
    for number, size in ((signal.SIGTERM, 1e7), (signal.SIGUSR1, 3e7), (signal.SIGHUP, 5e7)):
        process = train.start(*words, f"dataloader.folder={folder}")
        wait_for(lambda size=size: any(path.stat().st_size > size for path in folder.glob("train*.partial")))
        # note: all processes receive the signal, as from a closed terminal
        for one in processes_of(train.folder / "runs" / "none"):
            with suppress(psutil.NoSuchProcess):  # note: a worker may have ended since
                one.send_signal(number)
        output, _ = ended(process, 143)
        assert "run the same command to continue" in output
        assert not list(folder.glob("*.beton"))
        assert not processes_of(train.folder / "runs" / "none")
    train(*words, f"dataloader.folder={folder}")
    train(*words, f"dataloader.folder={train.folder / 'uninterrupted'}")
    uninterrupted = {path.name: path.read_bytes() for path in (train.folder / "uninterrupted").iterdir()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == uninterrupted


@pytest.fixture
def bucket(s3: Bucket, tmp_path: Path) -> Bucket:
    """S3 with class folders of 60 images."""
    return s3.hold(write_images(tmp_path / "folders", {"train": 24, "val": 6}))


def read_all(terminal: int, text: bytearray) -> None:
    """Read what a command writes to its terminal, until it ends."""
    with suppress(OSError):
        while data := os.read(terminal, 1 << 16):
            text += data
    os.close(terminal)


@pytest.mark.parametrize(("fault", "sent"), [("silent", signal.SIGTERM), ("cut", signal.SIGINT)])
def test_a_stop_ends_a_preparation_that_waits_for_a_bucket(
    fault: str, sent: signal.Signals, bucket: Bucket, tmp_path: Path
) -> None:
    train = Cold(tmp_path)
    # note: one worker has finished the first two tasks of 16 images when the fault starts
    words = ["prepare", "dataset=image_folder", "dataset.path=s3://mine/pets", "dataloader.workers=1"]
    with proxy(bucket.port, lambda number: fault if number > 40 else "") as between:
        train.environment |= {"AWS_ENDPOINT_URL": between.url, "TERM": "xterm"}
        (terminal, end), text = os.openpty(), bytearray()
        process = train.start(*words, "dataloader.folder=there", stdout=end)
        os.close(end)
        reader = threading.Thread(target=read_all, args=(terminal, text))
        reader.start()
        assert between.reached.wait(60)
        time.sleep(1)
        start = time.monotonic()
        process.send_signal(sent)
        _, errors = ended(process, 130 if sent == signal.SIGINT else 143)
        assert time.monotonic() - start < 50
        assert errors == f"stopped by {sent.name}\n"
        reader.join()
        output = text.decode()
        assert output.rstrip().endswith("stopped; run the same command to continue")
        # note: shows and hides the cursor
        assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l") >= 0
        between.fault = lambda number: ""
        before = next(between.gets)
        train(*words, "dataloader.folder=there")
        assert next(between.gets) - before <= 1 + 60 - 32
    train.environment["AWS_ENDPOINT_URL"] = bucket.url
    train(*words, "dataloader.folder=here")
    here, there = ({path.name: path.read_bytes() for path in (tmp_path / one).iterdir()} for one in ("here", "there"))
    assert here == there
