"""`train compare RUNS...`: compare runs by tradeoff curves, Pareto fronts and speed-ups, or by AlgoPerf's score."""

import argparse
import csv
import math
import sys
from typing import Any

from launcher.console import console, print_json, verbatim
from launcher.errors import Problem, UserError

EXAMPLES = [
    "train compare runs",
    "train compare runs --baseline baseline --quality 76.6",
    "train compare runs/mild-* runs/hot-* --axis money --csv",
    "train compare runs --metric balanced_accuracy",
    "train compare --published --baseline timm_a3 --json",
    "train compare runs --published --across machines,models",
    "train compare runs --algoperf external",
    "train compare runs --algoperf self --target 0.759",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUNS", help="run folders, or parents of run folders")
    add_axes(parser)
    parser.add_argument("--price", type=float, metavar="USD", help="price per hour for runs whose config has none")
    parser.add_argument("--baseline", metavar="CURVE", help="a curve, or CURVE on MACHINE (default: recipe baseline)")
    several: dict[str, Any] = {"type": float, "action": "append", "default": []}
    quality = "compare the costs of this quality: top-1 in percent, or what the runs have, such as a perplexity"
    parser.add_argument("--quality", **several, metavar="VALUE", help=quality)
    parser.add_argument("--cost", **several, metavar="COST", help="compare the qualities at this cost")
    parser.add_argument("--algoperf", choices=("external", "self"), help="score time to a target by AlgoPerf's rules")
    target = "target of --algoperf on any data set: top-1 in [0, 1], or what the runs have, such as a perplexity"
    parser.add_argument("--target", type=float, metavar="VALUE", help=f"{target} (default: those of its workloads)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--csv", action="store_true", help="print the points as CSV")


def add_axes(parser: argparse.ArgumentParser) -> None:
    """Add the options --published, --axis, --across and --metric."""
    parser.add_argument("--published", action="store_true", help="add the published points")
    across = "compare across machines, models, datasets: one or more, separated by commas"
    parser.add_argument("--across", metavar="WHAT", help=across)
    parser.add_argument("--metric", metavar="NAME", help="compare by another metric of the runs (see train ls metrics)")
    axis = "the cost to compare (default: time; across machines: money)"
    parser.add_argument("--axis", choices=("time", "wall", "money", "epochs"), help=axis)


def main(arguments: argparse.Namespace) -> int:
    if arguments.algoperf is not None:
        return _algoperf(arguments)
    if arguments.target is not None:
        raise UserError(Problem("add --algoperf external or --algoperf self", "--target", arguments.target))
    if not arguments.runs and not arguments.published:
        raise UserError("no runs; pass run folders, such as `train compare runs`, or --published")
    if arguments.price is not None and not 0 < arguments.price < math.inf:
        raise UserError(Problem("must be above 0 (USD per hour)", "--price", arguments.price))
    from launcher_lab.study import tables
    from launcher_lab.study.results import (
        choose_baselines,
        chosen_across,
        chosen_axis,
        comparisons,
        epochs_note,
        means_above,
        notes,
        read_results,
    )

    across = chosen_across(arguments.across)
    axis = chosen_axis(arguments.axis, across)
    of_runs = {"published": arguments.published, "price": arguments.price, "metric": arguments.metric}
    results = read_results(arguments.runs, across=across, **of_runs)
    baselines = choose_baselines(results.all_curves, arguments.baseline, axis, across)
    at = {"qualities": arguments.quality, "costs": arguments.cost}
    compared = comparisons(results.all_curves, baselines, axis, **at, across=across)
    if arguments.json:
        print_json(tables.as_json(results, compared, axis))
        return 0
    if arguments.csv:
        rows = tables.point_rows(results)
        writer = csv.DictWriter(sys.stdout, list(tables.POINT_COLUMNS))
        writer.writeheader()
        writer.writerows(rows)
        return 0
    out = console()
    for title, table in tables.rich_tables(results, compared, axis):
        out.print(f"[bold]{verbatim(title)}[/]")
        out.print(table)
        out.print()
    for line in means_above(results.curves, axis, arguments.quality):
        out.print(verbatim(line))
    if axis == "money" and any(not curve.on("money") for curve in results.curves):
        out.print("note: no run has a price; set the price per hour with --price USD", style="yellow")
    hint = None if across or axis == "epochs" else epochs_note(results.all_curves, baselines, compared)
    for note in [*notes(results, axis), *filter(None, [hint])]:
        out.print(verbatim(f"note: {note}"), style="yellow")
    return 0


def _algoperf(arguments: argparse.Namespace) -> int:
    if arguments.csv:
        raise UserError("--algoperf does not support --csv; use --json")
    from launcher.records.run import find_runs, read_run
    from launcher_lab.study.algoperf import score_runs
    from launcher_lab.study.tables import algoperf_json, algoperf_table

    runs = [read_run(path, arguments.metric) for path in find_runs(arguments.runs)]
    most = math.inf if any(run.metric.sign < 0 or not run.metric.unit for run in runs) else 1
    if arguments.target is not None and not 0 < arguments.target <= most:
        message = "must be a top-1 above 0 and at most 1, such as 0.759" if most == 1 else "must be above 0"
        raise UserError(Problem(message, "--target", arguments.target))
    scores = score_runs(runs, arguments.target, arguments.algoperf)
    if arguments.json:
        print_json(algoperf_json(scores))
        return 0
    out = console()
    out.print(algoperf_table(scores))
    for note in scores.notes:
        out.print(verbatim(f"note: {note}"), style="yellow")
    return 0
