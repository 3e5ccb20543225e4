"""A plan is of the processes and images that the run would have, unless the command line names others."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.launch import devices
from launcher.launch.prepare_run import planned_here, prepare_run
from tests.commands import execute


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        ([], 4),
        (["launch.nnodes=2"], 8),
        (["hardware=p4d_24xlarge"], 8),
        (["hardware=p4d_24xlarge", "launch.nnodes=2"], 16),
        (["launch.nnodes=2", "launch.nproc=2"], 4),
        (["launch=cpu"], 1),
        (["launch=cpu", "launch.nnodes=2"], 2),
    ],
)
def test_a_plan_is_of_this_machine_unless_the_words_say_otherwise(
    words: list[str], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 4)
    composed = compose(["recipe=mild", "dataset=imagenet", *words])
    prepared = prepare_run(composed, devices=planned_here(composed), must_exist=False)
    assert prepared.plan.world_size == processes


def test_a_plan_is_of_the_images_that_are_there(tmp_path: Path) -> None:
    for name in ("train/cat/0", "train/cat/1", "train/dog/0", "val/cat/0", "val/dog/0"):
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    words = [f"dataset.path={tmp_path}", "batch_size=1", "launch=cpu", "dataset.train_samples=99", "dataset.classes=2"]
    composed = compose(["recipe=mild", *words, "dataset.val_samples=50", "device_batch_size=null"])
    prepared = prepare_run(composed, devices=planned_here(composed), must_exist=False)
    assert (prepared.plan.train_samples, prepared.plan.config.dataset.val_samples) == (3, 2)
    code, _, errors = execute("plan", "recipe=mild", *words, "dataset.val_samples=50", "dataset.classes=5")
    assert (code, "has 2 classes" in errors) == (2, True)
