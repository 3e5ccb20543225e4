"""`train report RUNS -o FILE`: tradeoff curves as a page or image; of one run its page, model card or MLPerf log."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from launcher.console import console, print_json
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.files.outputs import check_file, with_digest
from launcher.records.run_folder import RunFolder, existing
from launcher_lab.cli.compare import add_axes

EXAMPLES = [
    "train report runs/mild-imagenet-1120-1",
    "train report runs/mild-imagenet-1120-1 -o README.md",
    "train report runs/mlperf_lars-imagenet-1120-1 -o mlperf.log",
    "train report runs -o report.html",
    "train report runs -o report.html -o curves.png",
    "train report runs -o figure.pdf",
    "train report runs -o report.html --across machines",
    "train report runs/mild-* runs/hot-* -o report.html --published --title 'mild and hot'",
]
_CARD, _LOG = ".md", ".log"
_FORMS = (".html", ".png", ".pdf", ".svg", _CARD, _LOG)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or parents of run folders")
    what = "the .html, .png, .pdf or .svg file; of one run a .md file (model card) or .log file (MLPerf's format); "
    what += "repeatable (default: the page index.html of each run)"
    parser.add_argument("-o", "--output", action="append", default=[], metavar="FILE", help=what)
    parser.add_argument("--title", default="Quality against cost", help="title of the page or image")
    add_axes(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    outputs = [Path(name) for name in arguments.output]
    for path in outputs:
        if path.suffix not in _FORMS:
            raise UserError(Problem(f"must end in one of {', '.join(_FORMS)}", "--output", path))
        check_file(path)
    if not outputs:
        return _pages(arguments)
    if of_run := [path for path in outputs if path.suffix in (_CARD, _LOG)]:
        if len(outputs) > len(of_run) or len(arguments.runs) > 1:
            raise UserError(Problem("is of one run; pass that run, and other files without it", "--output", of_run[0]))
        return _files_of_run(existing(arguments.runs[0]), of_run, is_json=arguments.json)
    from launcher_lab.study.report import check_packages, content, write_file
    from launcher_lab.study.results import chosen_across, chosen_axis, read_results

    check_packages(outputs[0])
    across = chosen_across(arguments.across)
    axis = chosen_axis(arguments.axis, across)
    results = read_results(arguments.runs, published=arguments.published, across=across, metric=arguments.metric)
    points = sum(len(curve.points) for curve in results.curves)
    for path in outputs:
        drawn = content(results, path.suffix, title=arguments.title, axis=axis)
        write_file(path, partial(Path.write_bytes, data=drawn))
        if not arguments.json:
            console().print(f"{path}: {count_of(len(results.runs), 'run')}, {count_of(points, 'point')}")
    if arguments.json:
        print_json({"files": outputs, "runs": [run.path for run in results.runs], "points": points})
    return 0


def _files_of_run(folder: RunFolder, outputs: Sequence[Path], *, is_json: bool) -> int:
    """Write the model card or MLPerf's log of a run."""
    from launcher.publish.card import as_text, card
    from launcher_lab.cli.mlperf import log
    from launcher_lab.study.report import write_file

    for path in outputs:
        text = log(folder) if path.suffix == _LOG else with_digest(as_text(*card(folder)))
        write_file(path, partial(Path.write_text, data=text, encoding="utf-8"))
    if is_json:
        print_json({"files": outputs, "runs": [folder.path], "points": 0})
    else:
        print(*outputs, sep="\n")
    return 0


def _pages(arguments: argparse.Namespace) -> int:
    """Write the page of each run."""
    from launcher.publish.run_page import write_page
    from launcher.records.run import find_runs

    runs = find_runs(arguments.runs)
    files = [write_page(RunFolder(path)) for path in runs]
    if arguments.json:
        print_json({"files": files, "runs": runs, "points": 0})
    else:
        print(*files, sep="\n")
    return 0
