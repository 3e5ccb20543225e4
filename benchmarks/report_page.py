"""Measure how long a page of `train report` with many runs takes to open and to filter, in a headless chromium.

    python -m benchmarks.report_page --runs 2000 --curves 250 --json report_page.json

Opening is the time from the navigation until the page is painted and the scripts are done. Filtering is the time from
the click on a recipe's box until the page is painted again; its processor time is that of the page's main thread, which
depends less on the load of the machine. Results are medians of several rounds, in milliseconds.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.chromium import Chromium, installed
from launcher_lab.study.curves import build_curves
from launcher_lab.study.published import published_curves
from launcher_lab.study.report import page
from launcher_lab.study.results import Results
from launcher_lab.study.runs import Evaluated, RunSummary, Times

_LENGTHS = (18, 36, 72, 144)
_OPENED = """new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(Math.max(
    performance.getEntriesByType("navigation")[0].loadEventEnd,
    ...performance.getEntriesByType("paint").map((entry) => entry.startTime))))))"""
_FILTERED = """new Promise((done) => {
    const began = performance.now();
    document.querySelectorAll("input[name=curve]")[%d].click();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    program = installed()
    if program is None:
        Console().print("chromium is not installed; install it: apt-get install chromium")
        return 1
    text = page(made_results(arguments.runs, arguments.curves), title="many runs", written="today")
    facts = {"runs": arguments.runs, "curves": arguments.curves, "megabytes": len(text.encode()) / 1e6}
    facts |= measured(program, text, arguments.repeats)
    Console().print(", ".join(f"{name} {value:.4g}" for name, value in facts.items()))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(facts, indent=2) + "\n")
    return 0


def measured(program: str, text: str, repeats: int) -> dict[str, float]:
    """Return the milliseconds to open and to filter the page, and its number of nodes."""
    browser = Chromium(program)
    browser.look(width=1200)
    browser.call("Performance.enable", timeDomain="threadTicks")
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "page.html").write_text(text)
        opened, filtered, busy = [], [], []
        for _ in range(repeats):
            browser.open(file.as_uri())
            opened.append(browser.run(_OPENED))
        for number in range(2 * repeats):
            before = _busy_ms(browser)
            filtered.append(browser.run(_FILTERED % (number % 5)))
            busy.append(_busy_ms(browser) - before)
        nodes = browser.run("document.querySelectorAll('*').length")
    browser.close()
    medians = {"open_ms": opened, "filter_ms": filtered, "filter_cpu_ms": busy}
    return {**{name: statistics.median(values) for name, values in medians.items()}, "nodes": nodes}


def _busy_ms(browser: Chromium) -> float:
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return next(1000 * float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def made_results(runs: int, curves: int) -> Results:
    """Make runs of `curves` recipes, of several lengths and seeds, each with one evaluation per epoch."""
    summaries = [_run(number, curves) for number in range(runs)]
    return Results(summaries, build_curves(summaries), published_curves())


def _run(number: int, curves: int) -> RunSummary:
    recipe, length = number % curves, _LENGTHS[number // curves % len(_LENGTHS)]
    seed = number // (curves * len(_LENGTHS))
    end = 60 + 10 * (1 - 18 / length) + recipe % 37 / 10 + seed % 7 / 20
    evaluations = tuple(Evaluated(float(epoch), epoch * 0.5, end * (1 - 0.5 / epoch)) for epoch in range(1, length + 1))
    seconds = 30.0 * length * (1 + recipe % 11 / 10)
    config: dict[str, Any] = {
        "recipe": f"recipe {recipe}",
        "epochs": length,
        "seed": seed,
        "model": {"name": "resnet50"},
        "dataset": {"name": "imagenet", "classes": 1000},
        "optimizer": {f"value_{key}": key / 7 for key in range(60)},
        "schedule": {"name": "cosine", "dilate": 1.0},
    }
    command = ("train", f"recipe={recipe}", f"seed={seed}", f"epochs={length}")
    times = Times(seconds, seconds + 60)
    path = Path(f"runs/recipe {recipe}-{length}-{seed}")
    return RunSummary(
        path, "finished", None, config, command, length, 8, "A100", evaluations, times, identities=("x" * 64,)
    )


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--curves", type=int, default=250)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
