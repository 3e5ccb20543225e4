"""`train ls`: list recipes with their published results, the options of each config group, and runs."""

import argparse
import sys
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from launcher.config import recipes
from launcher.config.gpus import unsupported
from launcher.config.groups import about, machines, options, price_age
from launcher.config.groups import values as group_values
from launcher.config.hardware import Hardware
from launcher.config.keys import synonyms
from launcher.config.recipes import Recipe
from launcher.config.schema import GROUPS, SWITCHED
from launcher.config.similar import did_you_mean
from launcher.config.tasks import metrics_of_tasks
from launcher.console import console, print_json, table, verbatim
from launcher.errors import Problem, Problems, UserError

EXAMPLES = [
    "train ls",
    "train ls recipes",
    "train ls ablations",
    "train ls algorithms",
    "train ls hardware",
    "train ls recipes --json",
    "train ls runs",
    "train ls runs study",
    "train ls runs study --metric balanced_accuracy",
    "train ls metrics",
]

SECTIONS = ("recipes", "ablations", "runs", *SWITCHED, *GROUPS)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("section", nargs="?", metavar="SECTION", help=f"one of: {', '.join(SECTIONS)}")
    parser.add_argument("folder", nargs="?", help="of train ls runs: a folder of runs (default: the value of runs)")
    metric = "of train ls runs: the metric whose best value is shown (default: that of each run)"
    parser.add_argument("--metric", metavar="NAME", help=metric)
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    section = arguments.section
    if section is not None and section not in SECTIONS:
        meant = {word: f"{kind} {one}" for kind in ("verb", "key") for word, one in synonyms(f"{kind}s").items()}
        hint = f"did you mean the {meant[section]}?" if section in meant else did_you_mean(section, SECTIONS)
        raise UserError(Problem(f"no such section; {hint}", "ls", section))
    if section == "runs":
        return _runs(arguments)
    if arguments.folder is not None:
        raise UserError(f"{arguments.folder}: only train ls runs takes a folder; omit it")
    if arguments.metric is not None:
        raise UserError(Problem("only train ls runs takes a metric; omit it", "--metric", arguments.metric))
    if section == "metrics":
        return _metrics(arguments)
    problems = Problems()
    listed: dict[str, list[Recipe]] = {}
    if section in (None, "recipes"):
        listed["recipes"] = recipes.listing(problems)
    if section == "ablations":
        listed["ablations"] = recipes.ablations(problems)
    for problem in problems:
        print(f"note: skipped: {problem}", file=sys.stderr)
    groups = {group: options(group) for group in (*SWITCHED, *GROUPS) if section in (None, group)}
    if arguments.json:
        rows = {kind: [_row(recipe) for recipe in several] for kind, several in listed.items()}
        known = machines().values() if section == "hardware" else ()
        hardware = {"hardware": [asdict(one) | {"problem": unsupported(one.gpu)} for one in known]} if known else {}
        print_json({**rows, **groups, **hardware})
        return 0
    out = console()
    for several in listed.values():
        out.print(_recipes(several))
    if section == "hardware":
        out.print(_hardware(machines().values()))
    elif section in groups:
        out.print(
            table(section, "description", rows=((name, verbatim(about(section, name))) for name in groups[section]))
        )
    elif groups:
        out.print(table("group", "options", rows=((group, " ".join(names)) for group, names in groups.items())))
    return 0


def _runs(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder or recipes.train().get("runs"))
    if arguments.folder and not folder.is_dir():
        raise UserError(f"{folder} is no folder; type train ls runs FOLDER")
    from launcher.cli.listed_runs import list_runs, runs_table  # note: and with it the records of runs

    runs = list_runs(folder, arguments.metric)
    if arguments.json:
        print_json({"runs": list(map(asdict, runs))})
    elif runs:
        console().print(runs_table(folder, runs))
    else:
        console().print(verbatim(f"no run in {folder} yet; type train ls runs FOLDER for those of another folder"))
    return 0


def _metrics(arguments: argparse.Namespace) -> int:
    """List the metrics of all tasks, and those of the user's files."""
    rows = [
        {"name": name, "what": one.about, "better": one.better, "tasks": tasks}
        for name, (one, tasks) in metrics_of_tasks().items()
    ]
    for name in options("metrics"):
        better = group_values("metrics", name).get("better", "higher")
        rows.append({"name": name, "what": about("metrics", name), "better": better, "tasks": [f"metrics={name}"]})
    if arguments.json:
        print_json({"metrics": rows})
        return 0
    cells = table("metric", "what", "better", "task")
    for row in rows:
        texts = ("higher is better" if row["better"] == "higher" else "lower is better", ", ".join(row["tasks"]))
        cells.add_row(*map(verbatim, (row["name"], row["what"], *texts)))
    cells.caption, cells.caption_justify = "set metric=NAME, stop.metric=NAME, or target=NAME:VALUE", "left"
    console().print(cells)
    return 0


def _row(recipe: Recipe) -> dict[str, Any]:
    return {"name": recipe.name, "path": str(recipe.path), **asdict(recipe.about)}


def _hardware(rows: Collection[Hardware]) -> Table:
    numbers = ("#", "cores", "GiB", "disk GB", "per hour", "spot")
    cells = table("hardware", "GPU", *numbers, "price date", numbers=numbers)
    for machine in rows:
        sizes = (machine.gpus, machine.cores, machine.memory, machine.disk)
        costs = (machine.price_per_hour, machine.spot_per_hour)
        cells.add_row(
            verbatim(machine.name),
            verbatim(f"{machine.gpu or '-'}{' *' if unsupported(machine.gpu) else ''}"),
            *("-" if size is None else f"{size:g}" for size in sizes),
            *("-" if cost is None else f"{cost:,.2f} {machine.currency}" for cost in costs),
            verbatim("-" if machine.price_per_hour is None else price_age(machine)),
        )
    reasons = dict.fromkeys(reason for machine in rows if (reason := unsupported(machine.gpu)))
    cells.caption, cells.caption_justify = "\n".join(f"* {reason}" for reason in reasons) or None, "left"
    return cells


def _recipes(rows: list[Recipe]) -> Table:
    numbers = ("epochs", "published top-1 %", "minutes")
    cells = table("recipe", *numbers, "hardware", "description", numbers=numbers)
    for recipe in rows:
        low, high = recipe.about.epochs
        band = f"{low}+" if high is None else f"{low}" if low == high else f"{low}-{high}"
        best = recipe.about.published[0] if recipe.about.published else None
        cells.add_row(
            verbatim(recipe.name),
            band,
            best.quality + (f" at {best.epochs} ep" if best.epochs else "") if best else "-",
            f"{best.minutes:g}" if best and best.minutes is not None else "-",
            verbatim(best.hardware) if best else "-",
            verbatim(recipe.about.summary),
        )
    return cells
