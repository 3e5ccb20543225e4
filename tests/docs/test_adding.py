"""docs/adding.md, followed literally in a copy of the source."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.forked import python

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
    module, *words = words[1:] if "python" in program else ["launcher.cli.main", *words]
    code = "import runpy, sys; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    output = python(code, module, *words, folder=copy, environment={**os.environ, "PYTHONPATH": str(copy)})
    if "plan" in words or "show" in words:
        assert "grayscale" in output
    if module == "pytest":
        assert re.search(r"\n\d+ passed, \d+ deselected", output), output
