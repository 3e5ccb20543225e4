"""The files and commands of docs/adding.md, applied to a copy of the source."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import python

from .pages import ROOT, blocks

pytestmark = pytest.mark.system

COPIED = ("launcher", "conf", "recipes", "tests", "docs")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the source with every file and change of the page."""
    folder = tmp_path_factory.mktemp("source")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for block in blocks(ROOT / "docs" / "adding.md"):
        if block.title:
            assert not (folder / block.title).exists()
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)
        elif block.language == "diff":
            subprocess.run(["git", "apply", "-C1"], cwd=folder, input=block.text, text=True, check=True)
    return folder


def commands() -> list[str]:
    page = ROOT / "docs" / "adding.md"
    return [line for block in blocks(page) if block.language == "sh" for line in block.lines]


# Text that the output of a command must contain.
EXPECTED = {
    "train ls hardware": "cellar",
    "train show task=ordinal target=mae:0.5": "ordinal",
    "train steps runs/dear": "1 steps",
    "train show code=nets.py": "nets.TinyNet",
}


@pytest.mark.parametrize("command", commands())
def test_each_command_of_the_page_works(copy: Path, command: str) -> None:
    program, *words = shlex.split(command)
    if program == "pip":
        # note: into a folder of the copy, with the packages installed here
        install = [sys.executable, "-m", "pip", *words, "--quiet", "--no-deps", "--no-build-isolation", "--target=site"]
        subprocess.run(install, cwd=copy, check=True)
        return
    module, *words = words[1:] if "python" in program else ["launcher", *words]
    code = "import runpy, sys; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    path = os.pathsep.join(map(str, (copy, copy / "site")))
    output = python(code, module, *words, folder=copy, environment={**os.environ, "PYTHONPATH": path})
    expected = [text for start, text in EXPECTED.items() if command.startswith(start)]
    if "plan" in words or ("show" in words and not expected):
        expected = ["grayscale"]
    assert all(text in output for text in expected), output
    if "logger=diary" in words:
        assert (copy / "runs" / "dear" / "diary.txt").read_text().startswith("step 1: top-1")
    if module == "pytest":
        assert re.search(r"\n\d+ passed", output), output
