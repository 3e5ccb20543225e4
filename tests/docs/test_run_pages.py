"""The commands of README, docs/first_run.md and docs/fine_tuning.md run as they stand there, on a few small images."""

import os
import re
import shlex
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.models import ResNet50_Weights

from launcher.config.resolved import read
from launcher.errors import INTERRUPTED
from launcher.installation import repository
from tests.forked import Command
from tests.images import write_images
from tests.networks import tiny
from tests.runs import SMALL, Here, in_ranks, use_tiny, wait_for
from tests.wheels import build, command, install

from .pages import ROOT, blocks

README = ROOT / "README.md"
TINY = ["launch=cpu", "model=resnet18", "batch_size=16", "dataset.train_samples=32", "dataset.val_samples=16"]
TINY += ["dataset.native_size=32", "epochs=1", "schedule.dilate=1", "schedule.warmup=0ba", "dataloader.workers=1"]


def test_the_clone_command_has_the_address_of_the_project() -> None:
    assert re.findall(r"git clone (\S+)", README.read_text()) == [f"{repository()}.git"]


@pytest.mark.system
def test_the_first_commands_work_in_an_empty_folder_with_the_wheel(tmp_path: Path) -> None:
    site = install(build(tmp_path), tmp_path / "site")
    images = write_images(tmp_path / "imagenet", {"train": 32, "val": 16})
    (empty := tmp_path / "empty").mkdir()
    first = next(block for block in blocks(README) if block.lines[0].startswith("train "))
    assert [line.split()[0] for line in first.lines] == ["train", "train"]
    for number, line in enumerate(first.lines, 1):
        words = [word.replace("/data/imagenet", str(images)) for word in shlex.split(line)[1:]]
        changed = TINY if "dataset=shapes" in words else [*TINY[:3], *TINY[5:], "dataset=image_folder"]
        done = command(site, empty, *words, *changed)
        output, errors = done.communicate()
        assert done.returncode == 0, (output, errors)
        assert len([*(empty / "runs").iterdir()]) == number


FIRST_RUN = [line for block in blocks(ROOT / "docs" / "first_run.md") if not block.language for line in block.lines]
SHAPES = ["schedule.dilate=0.06", "dataset.train_samples=128", "dataset.val_samples=64", "dataset.native_size=32"]


@pytest.mark.system
def test_the_commands_of_the_page_work_in_order(tmp_path: Path) -> None:
    environment = {**os.environ, **in_ranks(use_tiny), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("XDG_CACHE_HOME", None)
    (tmp_path / "empty").mkdir()
    for line in FIRST_RUN:
        program, *words = shlex.split(line)
        if program != "train":
            continue
        if words == ["resume"]:
            cut_short(tmp_path / "empty" / "runs")
        # note: the day is part of a run's name
        words = [today(word, tmp_path / "empty") for word in words]
        more = SHAPES if "dataset=shapes" in words else []
        before: list[Callable[[], object]] = [use_tiny]
        done = Command(["launcher", *words, *more], tmp_path / "empty", environment, before=before)
        if words[0] == "watch":
            wait_for(partial(is_listening, done.pid))
            done.send_signal(signal.SIGINT)
        output, errors = done.communicate()
        assert done.returncode == (INTERRUPTED if words[0] == "watch" else 0), (line, output, errors)
        if words == ["resume"]:
            assert "the newest unfinished run" in output


def is_listening(pid: int) -> bool:
    return any(one.status == psutil.CONN_LISTEN for one in psutil.Process(pid).net_connections())


def today(word: str, folder: Path) -> str:
    """Replace the name of a run on the page by the name of the run in this folder."""
    match = re.fullmatch(r"(runs/.*-)\d{4}(-\d+)", word)
    return str(next(folder.glob(f"{match[1]}*{match[2]}")).relative_to(folder)) if match else word


def cut_short(runs: Path) -> None:
    """Truncate the records of the only run, as if it was killed just before its end."""
    (records,) = runs.glob("*/metrics.jsonl")
    rows = records.read_text().splitlines(keepends=True)
    assert '"end"' in rows[-1]
    records.write_text("".join(rows[:-1]))


FINE_TUNING = [line for block in blocks(ROOT / "docs" / "fine_tuning.md") for line in block.lines if "train " in line]
SHORT = ["epochs=1", "batch_size=6", "dataset.native_size=32", "launch=cpu", "dataloader.workers=0"]


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The weights of torchvision and timm, as if they had been downloaded."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.save(tiny(num_classes=1000).state_dict(), tmp_path / "checkpoints" / Path(ResNet50_Weights.DEFAULT.url).name)
    save_file(timm.create_model("convnext_tiny").state_dict(), tmp_path / "timm.safetensors")
    monkeypatch.setattr("timm.models._hub.hf_hub_download", lambda *_, **__: str(tmp_path / "timm.safetensors"))


@pytest.mark.slow
@pytest.mark.usefixtures("libraries")
def test_every_command_plans_and_trains(here: Here) -> None:
    flowers = write_images(here.folder / "flowers", {"train": 6, "val": 2}, size=(32, 32))
    here(*SMALL, "model=resnet50", "run_name=mild-imagenet-1120-1", "epochs=1", "schedule.warmup=0ba")
    assert len(FINE_TUNING) == 6
    for number, line in enumerate(FINE_TUNING):
        # note: the probe is of this loop
        line = line.replace("/data/flowers", str(flowers)).replace("runs/probe-flowers-1120-1", "runs/3")
        _, *words = shlex.split(line)
        here("plan", *words, *SHORT)
        here(*words, *SHORT, f"run_name={number}")
    rates = [read(here.folder / "runs" / str(run) / "config.yaml").optimizer.backbone_lr for run in (0, 1)]
    assert rates == [1.0, 0.1], "of a ResNet and a ConvNeXt"
    config = read(here.folder / "runs" / "2" / "config.yaml")
    assert config.recipe == "finetune"
    assert (
        config.algorithms["blurpool"]
        == read(here.folder / "runs/mild-imagenet-1120-1/config.yaml").algorithms["blurpool"]
    )
