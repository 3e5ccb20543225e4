"""The user's recipes, options and code reach the job, as each kind of cluster brings them there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import refused
from tests.runs import SHAPES, in_ranks

from .conftest import Submit, types_accept, validate

NETS = """
from torch import nn


class TinyNet(nn.Module):
    def __init__(self, num_classes: int, width: int = 8):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, width, 3, stride=2), nn.Linear(width, num_classes)

    def forward(self, images):
        return self.head(self.conv(images).mean((2, 3)))
"""
WORDS = ["recipe=mine", "model=tiny", "launch=mine", "code=nets.py", "run_name=mine"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe, options and code, where the commands run."""
    monkeypatch.setenv("TRAIN_CODE", "[]")
    values = [word for word in SHAPES if not word.startswith(("model", "launch"))]
    nested: dict[str, Any] = {"defaults": ["train", "_self_"], "about": {"summary": "x", "epochs": [1, None]}}
    for key, _, value in (word.partition("=") for word in values):
        section, _, name = key.rpartition(".")
        if key == "dataset":
            nested["defaults"].insert(1, {"override dataset": value})
        else:
            (nested.setdefault(section, {}) if section else nested)[name] = yaml.safe_load(value)
    for folder in ("recipes", "conf/model", "conf/launch"):
        (tmp_path / "project" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    for name in ("nets", "far"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("recipes/mine.yaml").write_text(yaml.safe_dump(nested, sort_keys=False))
    Path("conf/model/tiny.yaml").write_text("_target_: nets.TinyNet\nwidth: 4\n")
    Path("conf/launch/mine.yaml").write_text("defaults:\n  - cpu\n  - _self_\nname: mine\n")
    Path("nets.py").write_text(NETS)
    return tmp_path / "project"


def pod_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (job,) = (one for one in documents if one["kind"] == "Job")
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def mounted(documents: list[dict[str, Any]], folder: Path) -> None:
    """Write the files of a ConfigMap to a folder, as symbolic links to a hidden one, as the kubelet does."""
    (config_map,) = (one for one in documents if one["kind"] == "ConfigMap")
    (volume,) = (one for one in pod_of(documents)["volumes"] if one["name"] == "files")
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    for item in volume["configMap"]["items"]:
        path = folder / "..data" / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config_map["data"][item["key"]])
    for top in (folder / "..data").iterdir():
        (folder / top.name).symlink_to(top)


def started(script: str, bin_folder: Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the bash lines of a job with only `train` on the path."""
    bin_folder.mkdir()
    train = bin_folder / "train"
    train.write_text(f'#!/bin/bash\nexec {sys.executable} -m launcher "$@"\n')
    train.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name != "TRAIN_CODE"}
    path = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env={**clean, **in_ranks(), **path, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@pytest.mark.system
def test_a_pod_trains_with_the_files_of_its_config_map(project: Path, submit: Submit, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(submit("kubernetes", *WORDS)))
    for document in documents:
        validate(document)
    (tmp_path / "job").mkdir()
    mounted(documents, tmp_path / "job")
    shutil.rmtree(project)
    (container,) = pod_of(documents)["containers"]
    script = container["command"][2].replace("/job", str(tmp_path / "job")).replace("/runs", str(tmp_path / "runs"))
    done = started(script, tmp_path / "bin", tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((tmp_path / "runs" / "mine" / "config.yaml").read_text())
    assert (config["recipe"], config["launch"]["name"], config["model"]["width"]) == ("mine", "mine", 4)


def test_every_kind_of_cluster_brings_the_files(project: Path, submit: Submit) -> None:
    files = {"conf/launch/mine.yaml", "conf/model/tiny.yaml", "nets.py", "recipes/mine.yaml"}
    task = yaml.safe_load(submit("sky", *WORDS, "submit.image=me/train:1", "submit.spot=false"))
    assert task["file_mounts"] == {f"/job/{name}": name for name in files}
    assert task["run"].startswith("cd /job\n")
    assert f"#SBATCH --chdir={project}\n" in submit("slurm", *WORDS)
    several = list(yaml.safe_load_all(submit("kubernetes", *WORDS, "launch.nnodes=2", "batch_size=16")))
    assert [one["kind"] for one in several] == ["ConfigMap", "TrainingRuntime", "NetworkPolicy", "TrainJob"]
    types_accept(several[-1])
    (patch,) = several[-1]["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    volumes = node["template"]["spec"]["template"]["spec"]["volumes"]
    assert {item["path"] for item in volumes[-1]["configMap"]["items"]} == files


def test_files_that_would_not_reach_the_job_are_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "far.py").write_text(NETS)
    for name in ("../far.py", str(tmp_path / "far.py")):
        shown = refused("submit", "--kubernetes", "recipe=mine", "launch=cpu", f"code={name}")
        assert "is not a path in this folder, so the job would not have it; copy it here, and set code=far.py" in shown
    Path("conf/large.yaml").write_text("#" * 900_001)
    assert "but a job carries 900 kB; move those" in refused("submit", "--kubernetes", "recipe=mine", "launch=cpu")


def test_a_job_without_own_files_has_none(tmp_path: Path, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "ConfigMap" not in submit("kubernetes", "recipe=hot")
    assert "--chdir" not in submit("slurm", "recipe=hot")
