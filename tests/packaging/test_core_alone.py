"""The launcher without the packages that add to it, and beside one that is broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runs import SMALL, Cold

pytestmark = pytest.mark.system

# What Python runs before anything else of a process: only the launcher is installed, and beside it what is asked for.
_SITE = """
import importlib.metadata, os, sys
from importlib.metadata import EntryPoint
_all = importlib.metadata.entry_points
_broken = [EntryPoint("theirs", "nowhere.at:all", group) for group in filter(None, os.environ["BROKEN"].split())]
def entry_points(**query):
    if not query:
        return _all()
    own = [point for point in _all(**query) if not point.value.startswith("lab.")]
    return importlib.metadata.EntryPoints(own + [point for point in _broken if point.group == query["group"]])
importlib.metadata.entry_points = entry_points
sys.modules["lab"] = None
"""


@pytest.fixture
def alone(tmp_path: Path, cold: Cold) -> Cold:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    cold.environment |= {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}", "BROKEN": ""}
    return cold


def test_it_trains_resumes_and_exports(alone: Cold) -> None:
    run = alone.small("a", "epochs=2")
    alone("resume", str(run), "epochs=3")
    alone("export", str(run))
    assert (run / "export" / "model.safetensors").exists()


def test_it_lists_what_is_installed_and_refuses_the_rest_in_a_line(alone: Cold) -> None:
    verbs = alone("--help").stdout
    assert "  plan " in verbs
    assert "\n    compare " not in verbs
    assert "--on" not in alone("plan", "--help").stdout
    assert "steps" in alone("plan", *SMALL).stdout
    assert "epochs: 3" in alone("show", *SMALL).stdout
    for words, line in (
        (
            ["compare", "runs", "--csv"],
            "error: compare is neither a verb nor key=value; did you mean train completion runs --csv?",
        ),
        (["logger=wandb"], "error: logger.name=wandb (command line): must be one of jsonl, tensorboard, "
         "or needs a package that provides it"),
    ):  # fmt: skip
        assert alone(*words, code=2).stderr.splitlines() == [line]


def test_a_broken_package_costs_one_warning(alone: Cold) -> None:
    alone.environment["BROKEN"] = "train.verbs train.options train.loggers"
    done = alone("plan", *SMALL)
    assert "steps" in done.stdout
    warnings = done.stderr.splitlines()
    assert len(warnings) == 3
    assert all("skipped theirs = nowhere.at:all: No module named 'nowhere'" in line for line in warnings)
