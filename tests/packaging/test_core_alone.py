"""The launcher without packages that extend it, and with a broken one."""

import json
import os
from pathlib import Path

import pytest

from tests.images import write_images
from tests.runs import SMALL, Cold

pytestmark = pytest.mark.system

# Runs at the start of each Python process: hide the lab and the modules HIDDEN, and add the entry point BROKEN to each
# group.
_SITE = """
import importlib.metadata, os, sys
from importlib.metadata import EntryPoint
_all = importlib.metadata.entry_points
_groups = ("train.verbs", "train.loggers")
_broken = [EntryPoint("plan", os.environ["BROKEN"], group) for group in _groups if os.environ["BROKEN"]]
def entry_points(**query):
    if query:
        return _all(**query)
    points = [point for group in (*_groups, "train.code") for point in _all(group=group)]
    return importlib.metadata.EntryPoints([p for p in points if not p.value.startswith("launcher_lab.")] + _broken)
importlib.metadata.entry_points = entry_points
sys.modules |= dict.fromkeys(["launcher_lab", *os.environ["HIDDEN"].split()])
"""


@pytest.fixture
def alone(tmp_path: Path, cold: Cold) -> Cold:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(":") if not part.endswith("originals")]
    cold.environment |= {"PYTHONPATH": ":".join([str(site), *inherited]), "BROKEN": "", "HIDDEN": ""}
    return cold


@pytest.mark.parametrize(("loader", "hidden"), [("torchvision", "ffcv numba cv2"), ("ffcv", "ffcv numba")])
def test_plain_packages_prepare_train_and_export(alone: Cold, tmp_path: Path, loader: str, hidden: str) -> None:
    alone.environment["HIDDEN"] = hidden
    images = write_images(tmp_path / "images", {"train": 16, "val": 8})
    words = ["dataset=image_folder", f"dataset.path={images}", f"dataloader={loader}", "dataloader.workers=1"]
    if loader == "ffcv":
        assert "32 images" in alone("prepare", *words).stdout
    few = ["dataset.train_samples=32", "dataset.val_samples=16", "epochs=1", "schedule.warmup=0ba"]
    run = alone.small("a", *words, *few)
    assert list((run / "checkpoints").iterdir())
    if loader == "torchvision":
        alone("export", str(run))
        assert (run / "export" / "model.safetensors").exists()
    doctor = {row["name"]: row for row in json.loads(alone("doctor", *words, "launch=cpu", "--json").stdout)}
    assert doctor["decoder"]["status"] == doctor["Pillow"]["status"] == "ok"
    assert not set(doctor["decoder"]["observation"].split()) & set(hidden.split())


def test_only_installed_verbs_and_loggers_are_listed_and_accepted(alone: Cold) -> None:
    verbs = alone("--help").stdout
    assert "  plan " in verbs
    assert "\n    compare " not in verbs
    assert "--on" in alone("plan", "--help").stdout
    assert "steps" in alone("plan", *SMALL).stdout
    assert "epochs: 3" in alone("show", *SMALL).stdout
    (diary := alone.folder / "conf" / "logger" / "diary.yaml").parent.mkdir(parents=True)
    diary.write_text("name: diary\ninterval: 10ba\ntensorboard: false\n")
    neither = "error: compare is neither a verb nor key=value; see `train --help` and `train ls`\n"
    assert alone("compare", "runs", "--csv", code=2).stderr == neither
    own = "jsonl, mlflow, prometheus, several, tensorboard, wandb, or needs a package that provides it"
    line = f"error: logger.name=diary (command line): must be one of {own}\n"
    assert alone("logger=diary", code=2).stderr == line


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        ("nowhere.at:all", ["No module named 'nowhere'"] * 2),
        ("builtins:int", ["must be a mapping of verb to", "must be a dataclass with a name"]),
    ],
)
def test_a_package_that_is_broken_or_of_a_wrong_type_is_one_warning(
    alone: Cold, value: str, reasons: list[str]
) -> None:
    alone.environment["BROKEN"] = value
    done = alone("plan", *SMALL)
    assert "steps" in done.stdout
    warnings = sorted(done.stderr.splitlines())
    expected = [f"skipped plan = {value}: {reason}" for reason in sorted(reasons)]
    assert [text in line for line, text in zip(warnings, expected, strict=True)] == [True] * 2
