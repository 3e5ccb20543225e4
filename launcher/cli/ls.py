"""`train ls`: recipes with their published results, and the options of each config group."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from launcher.config import recipes
from launcher.config.compose import options
from launcher.config.keys import did_you_mean
from launcher.config.recipes import Recipe
from launcher.config.schema import GROUPS
from launcher.errors import Problem, UserError

EXAMPLES = [
    "train ls",
    "train ls recipes",
    "train ls ablations",
    "train ls algorithms",
]

_SECTIONS = ("recipes", "ablations", "algorithms", *GROUPS)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("section", nargs="?", metavar="SECTION", help=f"one of: {', '.join(_SECTIONS)}")


def main(arguments: argparse.Namespace) -> int:
    section = arguments.section
    if section is not None and section not in _SECTIONS:
        raise UserError(Problem(f"no such section; {did_you_mean(section, _SECTIONS)}", "ls", section))
    console = Console(soft_wrap=True)
    if section in (None, "recipes"):
        console.print(_recipes(recipes.listing()))
    if section == "ablations":
        console.print(_recipes(recipes.ablations()))
    groups = [section] if section in ("algorithms", *GROUPS) else ["algorithms", *GROUPS] if section is None else []
    if groups:
        table = Table("group", "options", box=None, pad_edge=False, header_style="bold")
        for group in groups:
            table.add_row(group, " ".join(options(group)))
        console.print(table)
    return 0


def _recipes(found: list[Recipe]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=None)
    for column in ("recipe", "epochs", "top-1 %", "minutes", "hardware", "what it is"):
        table.add_column(column, justify="right" if column in ("epochs", "top-1 %", "minutes") else "left")
    for recipe in found:
        about = recipe.about
        low, high = about.epochs
        band = f"{low}–{high}" if high is not None else f"{low}+"
        table.add_row(recipe.name, band, _number(about.top1), _number(about.minutes), about.hardware or "-", about.summary)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
