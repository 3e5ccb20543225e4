"""The pages' published figures are those of the recipes' headers and of published.yaml."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from launcher.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_figures.py"))


@pytest.mark.parametrize("name", SCRIPT["PAGES"])
def test_a_page_is_current(name: str) -> None:
    text = (ROOT / name).read_text()
    assert SCRIPT["written"](text) == text, "run: .venv/bin/python scripts/write_figures.py"


def test_every_table_stands_in_a_page() -> None:
    text = "".join((ROOT / name).read_text() for name in SCRIPT["PAGES"])
    for table in SCRIPT["tables"]().values():
        assert table in text


def test_the_bound_is_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--published", "--baseline", "timm_a2"]) == 0
    shown = {re.sub(r"\s+", " ", line).strip() for line in capsys.readouterr().out.splitlines()}
    (told,) = re.findall(r"^(hot    timm_a2.*)$", (ROOT / "docs" / "efficiency.md").read_text(), re.MULTILINE)
    assert re.sub(r"\s+", " ", told) in shown
