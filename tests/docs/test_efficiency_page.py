"""docs/efficiency.md shows what the command computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.study.published import stated_speedups

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "efficiency.md").read_text()


def test_the_table_is_what_the_command_computes() -> None:
    for one in stated_speedups():
        row = f"| {one.claim} | {one.stated:g}x | {one.computed:.2f}x | {one.slow_minutes:g} / {one.fast_minutes:g}"
        assert row in TEXT


def test_the_bound_is_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--published", "--baseline", "timm_a2"]) == 0
    shown = {re.sub(r"\s+", " ", line).strip() for line in capsys.readouterr().out.splitlines()}
    (told,) = re.findall(r"^(hot    timm_a2.*)$", TEXT, re.MULTILINE)
    assert re.sub(r"\s+", " ", told) in shown
