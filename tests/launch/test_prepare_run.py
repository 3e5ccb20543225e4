"""A plan has the processes and images of the run, unless the command line sets others."""

import json
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.launch import devices
from launcher.launch.prepare_run import planned_here, prepare_run
from launcher.probe import ProbeResult
from tests.commands import output_of, refused
from tests.images import write_images


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
def test_a_plan_is_for_this_machine_unless_the_command_line_sets_another(
    words: list[str], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 4)
    composed = compose(["recipe=mild", "dataset=imagenet", *words])
    prepared = prepare_run(composed, devices=planned_here(composed), must_exist=False)
    assert prepared.plan.world_size == processes


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twelve training images of two classes, and four for validation."""
    return write_images(tmp_path / "images", {"train": 6, "val": 2})


@pytest.mark.parametrize("gpus", [0, 3])
@pytest.mark.parametrize("named", ["dataset.path", "environment"])
@pytest.mark.parametrize("recipe", [["recipe=hot"], ["schedule.warmup=1ba"]], ids=["hot", "no recipe"])
@pytest.mark.parametrize("launch", [[], ["launch=cpu"], ["launch.nproc=3"], ["launch=cpu", "launch.nproc=3"]])
def test_a_plan_has_the_images_and_processes_of_the_run(
    gpus: int, named: str, recipe: list[str], launch: list[str], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(
        devices, "run_probe", lambda script: ProbeResult({"cuda": "13.0", "gpus": [{}] * gpus, "error": ""})
    )
    words = [*recipe, *launch, "batch_size=6", "device_batch_size=null", "schedule.fit=on"]
    if named == "environment":
        monkeypatch.setenv("TRAIN_DATA", str(images))
    else:
        words.append(f"dataset.path={images}")
    planned = json.loads(output_of("plan", *words, "--json"))
    run = prepare_run(compose(words)).plan
    assert planned["train_samples"] == run.train_samples == 12
    processes = 1 if launch == ["launch=cpu"] else 3 if launch or gpus else 1
    assert planned["processes"] == run.world_size == processes


@pytest.mark.parametrize("word", ["launch.nproc=4", "launch.device=cuda"])
def test_a_plan_refuses_processes_that_this_machine_does_not_start(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 3 if "nproc" in word else 0)
    assert f"{word}: " in refused("plan", "recipe=mild", word)


def test_counts_of_the_config_replace_only_missing_images(images: Path) -> None:
    counts = ["dataset.train_samples=99", "dataset.classes=2", "dataset.val_samples=50", "batch_size=6"]
    words = ["plan", "recipe=mild", "schedule.fit=on", *counts, "launch=cpu"]
    missing = f"{images}/not is not on this machine; using the counts of dataset=imagenet, 99 training images"
    assert f"note: {missing}" in output_of(*words, f"dataset.path={images}/not")
    assert "2 classes" in output_of(*words, f"dataset.path={images}", "dataset.train_samples=null")
    assert "not on this machine" not in output_of(*words)
    assert "has 2 classes" in refused(*words, f"dataset.path={images}", "dataset.classes=5")
