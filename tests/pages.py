"""Open the report page in a headless browser."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.chromium import evaluated, installed
from launcher.results.curves import Cost
from launcher_lab.study.report import page
from launcher_lab.study.results import Results, read_results


def act(results: Results, actions: str, *, axis: Cost = "time", **words: Any) -> Any:
    """Run actions, an async function body, in the page of the results, and return their JSON result."""
    if installed() is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    return evaluated(page(results, title="a report", written="2026-01-01", axis=axis), actions, **words)


def in_browser(folder: Path, actions: str, *, published: bool = True, **words: Any) -> Any:
    """Run actions in the page of a folder of runs, and return their result."""
    return act(read_results([str(folder)], published=published), actions, **words)
