"""README has the address of pyproject.toml, and its first commands work in an empty folder with the wheel."""

import re
import shlex
from pathlib import Path

import pytest

from launcher.installation import project
from tests.images import write_images
from tests.wheels import build, command, install

from .pages import ROOT, blocks

README = ROOT / "README.md"
SMALL = ["launch=cpu", "model=resnet18", "batch_size=16", "dataset.train_samples=32", "dataset.val_samples=16"]
SMALL += ["dataset.native_size=32", "epochs=1", "schedule.dilate=1", "schedule.warmup=0ba", "dataloader.workers=1"]


def test_the_clone_command_has_the_address_of_the_project() -> None:
    assert re.findall(r"git clone (\S+)", README.read_text()) == [f"{project().repository}.git"]


@pytest.mark.system
def test_the_first_commands_work_in_an_empty_folder_with_the_wheel(tmp_path: Path) -> None:
    site = install(build(tmp_path), tmp_path / "site")
    images = write_images(tmp_path / "imagenet", {"train": 32, "val": 16})
    (empty := tmp_path / "empty").mkdir()
    first = next(block for block in blocks(README) if block.lines[0].startswith("train "))
    assert [line.split()[0] for line in first.lines] == ["train", "train"]
    for number, line in enumerate(first.lines, 1):
        words = [word.replace("/data/imagenet", str(images)) for word in shlex.split(line)[1:]]
        changed = SMALL if "dataset=shapes" in words else [*SMALL[:3], *SMALL[5:], "dataset=image_folder"]
        done = command(site, empty, *words, *changed)
        output, errors = done.communicate()
        assert done.returncode == 0, (output, errors)
        assert len([*(empty / "runs").iterdir()]) == number
