"""The measurement of the report's page runs and says what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report_page
from benchmarks.chromium import installed


def test_it_measures_a_small_page(tmp_path: Path) -> None:
    if installed() is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    words = ["--runs", "40", "--curves", "5", "--repeats", "1", "--json", str(tmp_path / "figures.json")]
    assert report_page.main(words) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["runs"], figures["curves"]) == (40, 5)
    assert all(figures[name] > 0 for name in ("megabytes", "open_ms", "filter_ms", "filter_cpu_ms", "nodes"))


def test_the_made_runs_are_as_many_as_asked_for() -> None:
    results = report_page.made_results(40, 5)
    assert len(results.runs) == 40
    assert (len(results.curves), sum(len(point.paths) for c in results.curves for point in c.points)) == (5, 40)
