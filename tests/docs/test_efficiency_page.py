"""docs/efficiency.md shows what the command computes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from launcher.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "efficiency.md").read_text()
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_efficiency.py"))


def test_the_tables_are_what_the_published_points_give() -> None:
    assert SCRIPT["written"](TEXT) == TEXT, "run: .venv/bin/python scripts/write_efficiency.py"
    for table in SCRIPT["tables"]().values():
        assert table in TEXT


def test_the_bound_is_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--published", "--baseline", "timm_a2"]) == 0
    shown = {re.sub(r"\s+", " ", line).strip() for line in capsys.readouterr().out.splitlines()}
    (told,) = re.findall(r"^(hot    timm_a2.*)$", TEXT, re.MULTILINE)
    assert re.sub(r"\s+", " ", told) in shown
