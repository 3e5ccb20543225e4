"""The bottleneck and the advice, with synthetic measurements."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.measure.diagnosis import diagnose
from launcher.measure.estimate import Measurement
from launcher.plan.plan import Plan
from tests import measurements


def plan(*words: str) -> Plan:
    return Plan(compose(["recipe=mild", "dataset=shapes", "epochs=10", "batch_size=64", *words]).config, 1, 4000)


def measured(run: Plan, *, step: float, load: float, transfer: float = 0.0, shared: float = 0.0) -> Measurement:
    """Measurements whose step time grows with the area, up to `step` at the full size."""
    largest = run.full_view
    return measurements.measured(
        run, lambda kind: step * (kind.view / largest) ** 2, load, shared=shared, transfer_seconds=[transfer]
    )


def test_the_longest_part_is_the_bottleneck() -> None:
    run = plan()
    assert diagnose(run, measured(run, step=1.0, load=0.01)).bound == "step"
    assert diagnose(run, measured(run, step=0.01, load=1.0)).bound == "data"
    assert diagnose(run, measured(run, step=0.01, load=0.02, transfer=1.0)).bound == "transfer"


def test_the_bottleneck_may_change_with_the_image_size() -> None:
    run = plan()
    diagnosis = diagnose(run, measured(run, step=1.0, load=0.5))
    assert diagnosis.bounds[0] == "data"
    assert diagnosis.bounds[-1] == "step"


def test_the_gain_is_what_free_loading_would_save() -> None:
    run = plan("algorithms.progressive_resizing=off")
    assert diagnose(run, measured(run, step=1.0, load=2.0)).gain == pytest.approx(0.5)
    assert diagnose(run, measured(run, step=1.0, load=0.5)).gain == 0.0
    assert diagnose(run, measured(run, step=1.0, load=0.5, shared=1.0)).gain == pytest.approx(1 / 3)


def advice_of(*words: str, step: float = 0.1, load: float = 1.0, workers: int = 8) -> str:
    run = plan(*words)
    measurement = replace(measured(run, step=step, load=load), workers=workers)
    return "\n".join(diagnose(run, measurement).advice)


def test_advice_when_loading_is_the_bottleneck(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "dataloader.workers=8: 2 of 8 cores" in advice_of(workers=2)
    assert "dataloader.workers" not in advice_of(workers=8)
    assert "dataloader=ffcv" in advice_of("dataloader=torchvision")
    monkeypatch.setattr("PIL.__version__", "12.1.1")
    assert "dataloader.dct_scaling=true" in advice_of("dataloader=torchvision")
    words = ["algorithms.randaugment=on", "algorithms.randaugment.where=loader"]
    assert "algorithms.randaugment.where=device" in advice_of(*words)
    where = "algorithms.progressive_resizing.where=loader"
    assert where in advice_of()
    assert where not in advice_of(where)
    assert "dataloader.dct_scaling=true" in advice_of(where, "dataloader=ffcv")
    assert "dataloader.dct_scaling" not in advice_of(where, "dataloader=ffcv", "dataloader.dct_scaling=true")


def test_advice_about_images_larger_than_needed_or_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["dataset=image_folder", f"dataset.path={tmp_path}", "dataset.classes=2", "dataset.native_size=256"]
    for folder in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "broken.png").touch()
    assert "shorter edge" not in advice_of(*words)
    Image.new("RGB", (900, 800)).save(tmp_path / "train" / "a" / "0.png")
    assert "their shorter edge is 800 px (median), but the run uses" in advice_of(*words)
    assert "cache" not in advice_of(*words)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1))
    assert "exceed it" in advice_of(*words)
    assert "shorter edge" not in advice_of(*words, "dataloader=ffcv")


def test_advice_when_the_step_is_the_bottleneck() -> None:
    slow: dict[str, Any] = {"step": 1.0, "load": 0.01}
    assert "precision=auto" in advice_of("precision=fp32", **slow)
    assert "channels_last=on" in advice_of("algorithms.channels_last=off", **slow)
    assert "sam.interval=10" in advice_of("algorithms.sam.interval=5", **slow)
    assert "deterministic=false" in advice_of("deterministic=true", **slow)
    assert "dataloader" not in advice_of("deterministic=true", **slow)
    assert advice_of(**slow) == ""


def test_advice_when_loading_and_training_share_cores() -> None:
    run = plan()
    diagnosis = diagnose(run, measured(run, step=1.0, load=0.5, shared=1.0))
    assert "same cores" in "\n".join(diagnosis.advice)


def test_advice_about_the_longest_part_comes_first() -> None:
    run = plan("precision=fp32")
    step_bound = diagnose(run, replace(measured(run, step=1.0, load=0.5, shared=1.0), workers=2))
    assert step_bound.bound == "step"
    assert ["precision" in line for line in step_bound.advice].index(True) == 0
    assert any("dataloader.workers=8" in line for line in step_bound.advice)
