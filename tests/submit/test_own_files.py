"""The user's recipes, options and code reach the job, as each kind of cluster brings them there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import refused
from tests.runs import SHAPES

from .conftest import Submit, types_accept, validate
from .empty_nodes import EmptyNodes, write

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
    monkeypatch.delenv("TRAIN_DATA")
    values = [word for word in SHAPES if not word.startswith(("model", "launch"))]
    nested: dict[str, Any] = {"defaults": ["train", "_self_"], "about": {"summary": "x", "epochs": [1, None]}}
    for key, _, value in (word.partition("=") for word in values):
        section, _, name = key.rpartition(".")
        if key == "dataset":
            nested["defaults"].insert(1, {"override dataset": value})
        else:
            (nested.setdefault(section, {}) if section else nested)[name] = yaml.safe_load(value)
    for folder in ("recipes", "conf/model", "shared"):
        (tmp_path / "project" / folder).mkdir(parents=True)
    (tmp_path / "project" / "conf" / "launch").symlink_to("../shared")
    monkeypatch.chdir(tmp_path / "project")
    for name in ("nets", "far"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("recipes/mine.yaml").write_text(yaml.safe_dump(nested, sort_keys=False))
    Path("conf/model/tiny.yaml").write_text("_target_: nets.TinyNet\nwidth: 4\n")
    Path("conf/launch/mine.yaml").write_text("defaults:\n  - cpu\n  - _self_\nname: mine\n")
    Path("nets.py").write_text(NETS)
    return tmp_path / "project"


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "nodes"),
    [("slurm", 1), ("slurm", 2), ("sky", 1), ("sky", 2), ("checkout", 1), ("kubernetes", 1), ("kubernetes", 2)],
)
def test_new_nodes_train_with_the_files_that_a_job_brings(
    kind: str, nodes: int, project: Path, submit: Submit, tmp_path: Path
) -> None:
    if nodes > 1 and os.geteuid():
        pytest.skip("two host names on one machine need root")
    cluster = EmptyNodes(tmp_path, nodes)
    words = [*WORDS, f"launch.nnodes={nodes}", "batch_size=16", "launch.rdzv_timeout=240"]
    if kind == "slurm":
        text = submit(kind, *words, f"runs={cluster.runs}", f"submit.program={cluster.program}")
    elif kind == "kubernetes":
        text = submit(kind, *words)
    else:
        write(project / "scripts" / "setup.sh", "")
        image = ["submit.image=me/train:1"] if kind == "sky" else []
        text = submit("sky", *words, "submit.runs=s3://mine/runs", *image)
    start: dict[str, Callable[[], list[tuple[int, str]]]] = {
        "slurm": lambda: cluster.slurm(text),
        "kubernetes": lambda: cluster.kubernetes(text),
    }
    if kind != "slurm":  # whose nodes share the folder
        project = project.rename(tmp_path / "submitted")
    for turn in ("first", "after all nodes are replaced"):
        ended = start.get(kind, lambda: cluster.sky(text, project))()
        assert {code for code, _ in ended} == {0}, (turn, ended)
    config = yaml.safe_load((cluster.runs / "mine" / "config.yaml").read_text())
    assert (config["recipe"], config["launch"]["name"], config["model"]["width"]) == ("mine", "mine", 4)


def test_every_kind_of_cluster_brings_the_files(project: Path, submit: Submit) -> None:
    files = {"conf/launch/mine.yaml", "conf/model/tiny.yaml", "nets.py", "recipes/mine.yaml"}
    task = yaml.safe_load(submit("sky", *WORDS, "submit.image=me/train:1", "submit.spot=false"))
    assert task["file_mounts"] == {f"/job/{name}": name for name in files}
    assert task["run"].startswith("cd /job\n")
    several = list(yaml.safe_load_all(submit("kubernetes", *WORDS, "launch.nnodes=2", "batch_size=16")))
    assert [one["kind"] for one in several] == ["ConfigMap", "TrainingRuntime", "NetworkPolicy", "TrainJob"]
    validate(several[0])
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
    assert "\ncd " not in submit("slurm", "recipe=hot")
