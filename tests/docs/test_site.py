"""mkdocs builds the site from all pages, without a warning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .pages import ROOT

# note: mkdocs-material is not part of .venv and may be installed for another Python
PYTHON = os.environ.get("MKDOCS_PYTHON", sys.executable)


def pages(part: object) -> list[str]:
    if isinstance(part, str):
        return [part]
    inner = part.values() if isinstance(part, dict) else part
    return [page for below in inner for page in pages(below)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation() -> None:
    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    files = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert sorted(listed) == files
    index = (ROOT / "docs" / "index.md").read_text()
    assert [name for name in files if name != "index.md" and f"]({name})" not in index] == []
    assert len(files) <= 22


def test_mkdocs_builds_it_without_a_warning(tmp_path: Path) -> None:
    if subprocess.run([PYTHON, "-c", "import material"], capture_output=True, check=False).returncode:
        pytest.skip("mkdocs-material is not installed (MKDOCS_PYTHON can be a Python that has it)")
    command = [PYTHON, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "keys" / "index.html").stat().st_size > 50_000
