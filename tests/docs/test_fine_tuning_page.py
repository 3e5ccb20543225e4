"""The commands of docs/fine_tuning.md train as they stand there, on a few small images."""

import shlex
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.models import ResNet50_Weights

from launcher.config.resolved import read
from tests.images import write_images
from tests.networks import tiny
from tests.runs import SMALL, Here

from .pages import ROOT, blocks

LINES = [line for block in blocks(ROOT / "docs" / "fine_tuning.md") for line in block.lines if "train " in line]
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
    assert len(LINES) == 4
    for number, line in enumerate(LINES):
        _, *words = shlex.split(line.replace("/data/flowers", str(flowers)))
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
