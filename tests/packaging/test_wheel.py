"""The wheel contains conf/ and recipes/ and runs from any folder."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.wheels import ROOT, build, install

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("site"))


def train(site: Path, folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, str(site / "bin" / "train"), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_contains_conf_recipes_packages_and_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("conf", "recipes"):
        for path in (ROOT / folder).rglob("*.yaml"):
            assert f"launcher/assets/{path.relative_to(ROOT)}" in names
    for package in ("launcher", "launcher_lab"):
        files = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.*") if "__pycache__" not in path.parts}
        assert {str(path) for path in files} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "launcher/assets/AGENTS.md" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_the_installed_command_runs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(train(installed, tmp_path, "ls", "recipes", "--json"))["recipes"]
    assert {row["name"] for row in listed} >= {"mild", "medium", "hot", "baseline"}
    assert all(row["path"].startswith(str(installed / "launcher" / "assets")) for row in listed)
    assert json.loads(train(installed, tmp_path, "plan", "recipe=hot", "--json"))["epochs"] == 270
    assert "_ARGCOMPLETE" in train(installed, tmp_path, "completion", "bash")
    assert "train schema" in train(installed, tmp_path, "help", "agents")


def test_the_installed_command_trains_submits_and_reports(installed: Path, tmp_path: Path) -> None:
    """This includes the verbs of `launcher_lab`, which are registered by entry points."""
    words = ["launch=cpu", "epochs=1", "batch_size=16", "dataset.train_samples=32", "dataset.val_samples=16"]
    words += ["dataset.native_size=32", "schedule.warmup=0ba", "dataloader.workers=1", "model=resnet18"]
    train(installed, tmp_path, *words, "run_name=r")
    run = tmp_path / "runs" / "r"
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines() if '"eval"' in line]
    assert steps == [2]
    assert "#SBATCH" in train(installed, tmp_path, "submit", "--slurm", "recipe=mild", "dataset=shapes", *words[1:])
    train(installed, tmp_path, "report", "runs", "-o", "report.html")
    assert "<script" in (tmp_path / "report.html").read_text()
