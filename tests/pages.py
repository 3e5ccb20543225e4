"""Open the report page in a headless browser."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chromium import Chromium, installed
from launcher_lab.study.curves import Cost
from launcher_lab.study.report import page
from launcher_lab.study.results import Results, read_results

# Inserted before the script of the page: collect its errors.
_WATCH = """<script>
window.problems = [];
window.addEventListener("error", (event) => problems.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => problems.push("blocked: " + event.blockedURI));
console.error = (...words) => problems.push(words.join(" "));
</script>"""


@cache
def browser() -> Chromium:
    """Return the browser of all tests of a process."""
    program = installed()
    if program is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    return Chromium(program)


def show(results: Results, tmp_path: Path, *, width: int = 1000, dark: bool = False, **words: Any) -> Chromium:
    """Open the page of the results in the browser."""
    text = page(results, title="a report", written="2026-01-01", **words).replace("<style>", _WATCH + "<style>", 1)
    (file := tmp_path / "page.html").write_text(text)
    chromium = browser()
    chromium.look(width=width, dark=dark)
    chromium.open(file.as_uri())
    return chromium


def act(chromium: Chromium, actions: str) -> Any:
    """Run actions, an async function body, and return their JSON result; fail on any error of the page."""
    result = chromium.run(f"(async () => {{ {actions} }})()")
    assert chromium.run("problems") == []
    return result


def in_browser(
    folder: Path, tmp_path: Path, actions: str, *, width: int = 1000, published: bool = True, axis: Cost = "time"
) -> Any:
    """Run actions in the page of a folder of runs, and return their result."""
    results = read_results([str(folder)], published=published)
    return act(show(results, tmp_path, width=width, axis=axis), actions)
