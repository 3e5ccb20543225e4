"""The Dockerfile: its last steps, and all steps in fresh Debian root file systems (TRAIN_TEST_IMAGE=1)."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images import write_images

from .builder import Stage, build, instructions

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
SMALL = [
    "dataset=shapes",
    "launch=cpu",
    "epochs=1",
    "batch_size=16",
    "dataset.train_samples=32",
    "dataset.val_samples=16",
]

slow = pytest.mark.skipif(
    os.environ.get("TRAIN_TEST_IMAGE") != "1" or not shutil.which("debootstrap") or os.geteuid() != 0,
    reason="takes some ten minutes and 20 GB: TRAIN_TEST_IMAGE=1, as root, with debootstrap",
)


def test_the_last_steps_are_the_doctor_and_the_entry_point() -> None:
    steps = list(instructions(DOCKERFILE.read_text()))
    assert steps[-2:] == [("RUN", "train doctor dataset=shapes"), ("ENTRYPOINT", '["train"]')]
    users = [rest for name, rest in steps if name == "USER"]
    assert users == ["train"]
    assert ("VOLUME", '["/data", "/runs"]') in steps
    assert ("RUN", "scripts/setup.sh") in steps


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    work = tmp_path_factory.mktemp("image")
    start = time.monotonic()
    stage = build(DOCKERFILE, ROOT, work, Path(os.environ.get("TRAIN_TEST_IMAGE_LOG", work / "build.log")))
    size = subprocess.run(["du", "-sm", str(stage.root)], check=True, capture_output=True, text=True).stdout.split()[0]
    print(f"built in {time.monotonic() - start:.0f} s, {size} MiB")
    yield stage
    # note: rm would delete mounted files too
    assert str(work) not in Path("/proc/mounts").read_text()
    subprocess.run(["rm", "-rf", str(work)], check=True)


@slow
@pytest.mark.system
@pytest.mark.timeout(3600)
def test_an_image_built_in_a_fresh_debian_works_and_trains(image: Stage) -> None:
    doctor = image.run([*image.entry, "doctor", "dataset=shapes"])
    assert doctor.returncode == 0, doctor.stdout
    trained = image.run([*image.entry, *SMALL, "dataset.native_size=32", "schedule.warmup=0ba", "run_name=demo"])
    assert trained.returncode == 0, trained.stdout + trained.stderr
    run = image.root / "runs" / "demo"
    assert list((run / "checkpoints").iterdir())
    assert (run / "config.yaml").stat().st_uid != 0
    missing = image.run([*image.entry, "recipe=hot", "epochs=240", "launch=cpu"])
    assert "/data" in missing.stderr


@slow
@pytest.mark.system
@pytest.mark.timeout(3600)
def test_another_user_prepares_and_trains_on_a_read_only_root(image: Stage) -> None:
    write_images(image.root / "data", {"train": 16, "val": 8})
    files = ["dataset=image_folder", "dataloader=ffcv", "dataloader.folder=/runs/files", "dataset.native_size=32"]
    trained = ["launch=cpu", "epochs=1", "batch_size=16", "schedule.warmup=0ba", "model=resnet18", "compile=on"]
    image.user = "4321:4321"
    for words in (["prepare", *files], [*files, *trained, "run_name=frozen"]):
        done = image.run([*image.entry, *words], read_only=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (image.root / "runs" / "frozen" / "config.yaml").stat().st_uid == 4321
    image.user = "train"


@slow
@pytest.mark.system
@pytest.mark.timeout(3600)
def test_the_tests_pass_inside_the_image(image: Stage) -> None:
    image.folder = "/opt/train"
    # note: root owns the source there, so the tests cannot write to it
    elsewhere = {"HOME": "/home/train", "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis"}
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not system"]
    done = image.run(["/opt/train/.venv/bin/python", *words], **elsewhere)
    assert done.returncode == 0, done.stdout[-8000:]
