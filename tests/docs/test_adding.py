"""The files and commands of docs/adding.md, in an empty folder with the wheel and no checkout."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import draw_nothing, use_tiny
from tests.wheels import build, command, install

from .pages import ROOT, blocks

pytestmark = pytest.mark.system
PAGE = ROOT / "docs" / "adding.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed wheel."""
    return install(build(tmp_path_factory.mktemp("wheel")), tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for packages beside the wheel."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every file of the page, and of the examples that it shows."""
    folder = tmp_path_factory.mktemp("own")
    for example in ("grayscale", "ordinal", "recordio", "diary"):
        assert f"`examples/{example}/`" in PAGE.read_text()
        shutil.copytree(ROOT / "examples" / example, folder, dirs_exist_ok=True)
    for block in blocks(PAGE):
        if block.title:
            assert not (folder / block.title).exists()
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)
    return folder


def commands() -> list[str]:
    return [line for block in blocks(PAGE) if block.language == "sh" for line in block.lines]


# Text that the output of a command must contain.
EXPECTED = {
    "train show code=nets.py": "nets.TinyNet",
    "train ls model": "One convolution.",
    "train plan recipe=mine": "jitter",
    "train recipe=mine": "top3",
    "train eval runs/mine": "top3",
    "train plan code=grayscale.py": "grayscale",
    "train show code=ordinal.py": "ordinal",
    "train code=ordinal.py": "mean absolute error|error",
    "train code=recordio.py": "top-1",
    "train plan recipe=mild_gray": "grayscale",
    "train ls hardware": "cellar",
    "train show algorithms=[gray]": "gray.Gray",
    "train steps runs/dear": "steps: 8",
}


@pytest.mark.parametrize("line", commands())
def test_each_command_of_the_page_works(site: Path, packages: Path, folder: Path, line: str) -> None:
    program, *words = shlex.split(line)
    if program == "pip":
        # note: with the packages installed here
        install(folder / words[1], packages)
        return
    if program == "python":
        subprocess.run([sys.executable, *words], cwd=folder, check=True)
        return
    done = command(site, folder, *words, more=[packages], before=[use_tiny, draw_nothing])
    output, errors = done.communicate()
    assert done.returncode == 0, errors
    expected = next((text for start, text in EXPECTED.items() if line.startswith(start)), "")
    assert any(text in output for text in expected.split("|")), output
    if "run_name=mine" in words:
        assert len((folder / "runs" / "mine" / "norms.txt").read_text().splitlines()) == 2
    if "logger=diary" in words:
        assert (folder / "runs" / "dear" / "diary.txt").read_text().startswith("step 8: top-1")
