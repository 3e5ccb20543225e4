from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import output_of
from tests.counted_steps import made_up

Submit = Callable[..., str]


@pytest.fixture(autouse=True)
def _counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # note: a trace of each run's steps takes seconds
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", made_up)


@pytest.fixture(autouse=True)
def _images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_DATA", "/data/imagenet")


@pytest.fixture
def submit() -> Submit:
    """Return a function that returns the output of `train submit`."""
    return lambda kind, *words: output_of("submit", f"--{kind}", *words)


def program(path: Path, text: str, shell: str = "sh") -> None:
    """Write a program in place of one of a cluster."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/{shell}\n{text}\n")
    path.chmod(0o755)


def options(script: str) -> dict[str, str]:
    """Return the options of sbatch in a script."""
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def validate(manifest: dict[str, Any]) -> None:
    schema = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    schema.validate(manifest, "1.31", strict=True)


def types_accept(manifest: dict[str, Any]) -> None:
    """Check a manifest against Kubeflow Trainer's own types, which drop fields that they lack."""
    types = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed")
    prefix = "JobsetV1alpha2" if manifest["kind"] == "JobSet" else "TrainerV1alpha1"
    assert getattr(types, prefix + manifest["kind"]).from_dict(manifest).to_dict() == manifest
