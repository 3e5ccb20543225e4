"""The commands of docs/first_run.md, from an empty folder."""

import os
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.forked import Command, fork_checks
from tests.networks import use_tiny_of_torchvision
from tests.runs import in_ranks, use_tiny

from .pages import ROOT, blocks

pytestmark = pytest.mark.system

LINES = [line for block in blocks(ROOT / "docs" / "first_run.md") if not block.language for line in block.lines]
SMALL = ["schedule.dilate=0.06", "dataset.train_samples=128", "dataset.val_samples=64", "dataset.native_size=32"]


def test_the_commands_of_the_page_work_in_order(tmp_path: Path) -> None:
    environment = {**os.environ, **in_ranks(use_tiny), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("XDG_CACHE_HOME", None)
    (tmp_path / "empty").mkdir()
    for line in LINES:
        program, *words = shlex.split(line)
        if program != "train":
            continue
        if words == ["resume"]:
            cut_short(tmp_path / "empty" / "runs")
        # note: the day is part of a run's name
        words = [today(word, tmp_path / "empty") for word in words]
        more = SMALL if "dataset=shapes" in words else []
        before: list[Callable[[], object]] = [use_tiny, partial(fork_checks, use_tiny_of_torchvision)]
        done = Command(["launcher", *words, *more], tmp_path / "empty", environment, before=before)
        output, errors = done.communicate()
        assert done.returncode == 0, (line, output, errors)
        if words == ["resume"]:
            assert "the newest unfinished run" in output


def today(word: str, folder: Path) -> str:
    """Replace the name of a run on the page by the name of the run in this folder."""
    match = re.fullmatch(r"(runs/.*-)\d{4}(-\d+)", word)
    return str(next(folder.glob(f"{match[1]}*{match[2]}")).relative_to(folder)) if match else word


def cut_short(runs: Path) -> None:
    """Truncate the records of the only run, as if it was killed just before its end."""
    (records,) = runs.glob("*/metrics.jsonl")
    rows = records.read_text().splitlines(keepends=True)
    assert '"end"' in rows[-1]
    records.write_text("".join(rows[:-1]))
