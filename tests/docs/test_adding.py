"""docs/adding.md, followed literally in a copy of the source."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT, blocks

pytestmark = pytest.mark.system

COPIED = ("launcher", "conf", "recipes", "tests", "docs")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with every file and every change of the page."""
    folder = tmp_path_factory.mktemp("source")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for block in blocks(ROOT / "docs" / "adding.md"):
        if block.title:
            assert not (folder / block.title).exists()
            (folder / block.title).write_text(block.text)
        elif block.language == "diff":
            subprocess.run(["git", "apply", "-C1"], cwd=folder, input=block.text, text=True, check=True)
    return folder


def commands() -> list[str]:
    page = ROOT / "docs" / "adding.md"
    return [line for block in blocks(page) if block.language == "sh" for line in block.lines]


@pytest.mark.parametrize("command", commands())
def test_each_command_of_the_page_works(copy: Path, command: str) -> None:
    program, *words = shlex.split(command)
    start = [sys.executable] if "python" in program else [sys.executable, "-m", "launcher.cli.main"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*start, *words], cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "plan" in words or "show" in words:
        assert "grayscale" in done.stdout
