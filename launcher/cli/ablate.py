"""`train ablate`: the grid of a recipe's algorithms, their effects in finished runs, and the parts of a step."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from launcher.cli.estimate import seconds
from launcher.config.compose import compose
from launcher.console import console, verbatim
from launcher.data.folder import is_folder
from launcher.data.identity import identity_if_there
from launcher.study.ablation import (
    Effect,
    Tradeoff,
    Variant,
    VariantResult,
    comparable,
    curve_of,
    effects,
    grid,
    limits,
    measured,
    tradeoffs,
)
from launcher.study.curve_math import BootstrapEstimate
from launcher.study.runs import find_runs, read_run

EXAMPLES = [
    "train ablate recipe=hot dataset.path=/data/imagenet",
    "train ablate recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 --seconds 0.5",
    "train ablate recipe=hot --grid --json",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--grid", action="store_true", help="the grid and its runs alone; measures nothing")
    parser.add_argument("--seconds", type=seconds, default=1.0, metavar="S", help="for each kind of step (default: 1)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    composed = compose(arguments.overrides)
    variants = grid(list(composed.config.algorithms.active()))
    commands = {variant.name: [*arguments.overrides, *variant.words] for variant in variants}
    folders = find_runs([composed.config.runs]) if _holds_runs(Path(composed.config.runs)) else []
    configs = {name: compose(words).config for name, words in commands.items()}
    pictures = identity_if_there(composed.config) if folders else None
    runs = comparable(list(configs.values()), [read_run(path) for path in folders], pictures)
    curves = {name: curve_of(config, runs) for name, config in configs.items()}
    found = {name: measured(at[1]) if at else None for name, at in curves.items()}
    changes, exchanges = effects(variants, found), tradeoffs(variants, curves)
    parts = {} if arguments.grid else _parts(arguments)
    if arguments.json:
        print(json.dumps(_as_json(variants, commands, found, changes, exchanges, parts), indent=2))
        return 0
    out = console()
    out.print(_grid(commands, found))
    if changes:
        out.print(_effects(changes))
        out.print(_tradeoffs(exchanges))
    if parts:
        out.print(_split(parts))
    return 0


def _holds_runs(path: Path) -> bool:
    return is_folder(path) and any(path.glob("**/config.yaml"))


def _parts(arguments: argparse.Namespace) -> dict[str, float]:
    """Mean seconds of a step of the whole recipe, waiting for data and copies included."""
    from launcher.measure.estimate import waiting
    from launcher.measure.launch import measure_parts, measure_steps, real_plan

    plan, devices = real_plan(compose(arguments.overrides))
    waited = waiting(plan, measure_steps(plan, devices, arguments.seconds))
    return {**waited, **measure_parts(plan, devices, arguments.seconds)}


def _as_json(
    variants: list[Variant],
    commands: dict[str, list[str]],
    found: dict[str, VariantResult | None],
    changes: list[Effect],
    exchanges: list[Tradeoff],
    parts: dict[str, float],
) -> dict[str, object]:
    rows = [
        {**asdict(v), "command": commands[v.name], "measured": asdict(m) if (m := found[v.name]) else None}
        for v in variants
    ]
    split = [
        {"part": name, "seconds": parts[name], "share": share, "speedup_limit": limit}
        for name, share, limit in limits(parts)
    ]
    return {
        "grid": rows,
        "effects": [asdict(change) for change in changes],
        "tradeoff": [asdict(exchange) for exchange in exchanges],
        "split": split,
    }


def _grid(commands: dict[str, list[str]], found: dict[str, VariantResult | None]) -> Table:
    table = Table("variant", "runs", "top-1 %", "minutes", "command", box=None, header_style="bold")
    for name, words in commands.items():
        measured = found[name]
        numbers = (str(measured.runs), f"{measured.top1:.2f}", f"{measured.minutes:.1f}") if measured else ("-",) * 3
        table.add_row(name, *numbers, shlex.join(["train", *words]).replace("[", "\\["))
    return table


def _effects(changes: list[Effect]) -> Table:
    table = Table("algorithm", "measured by", "top-1, points", "training time", box=None, header_style="bold")
    for change in changes:
        kind = "leaving it out" if change.kind == "without" else "adding it alone"
        table.add_row(change.algorithm, kind, f"{change.top1:+.2f}", f"{change.time:+.1%}")
    return table


def _tradeoffs(exchanges: list[Tradeoff]) -> Table:
    table = Table("algorithm", "against the curve of", "speed-up at equal quality", "points at equal time", box=None)
    table.header_style = "bold"
    for one in exchanges:
        certain = f"at least {one.at_least:.2f}x; " if one.at_least else ""
        certain += f"at most {one.at_most:.2f}x; " if one.at_most else ""
        table.add_row(
            one.algorithm,
            "all" if one.kind == "without" else "none",
            _number(one.speedup, "{:.2f}x") or verbatim(certain + one.why_no_speedup),
            _number(one.gain, "{:+.2f}") or verbatim(one.why_no_gain),
        )
    return table


def _number(value: BootstrapEstimate | None, form: str) -> str:
    """The value with its interval, where it has one."""
    if value is None:
        return ""
    ends = ["beyond the range" if end is None else form.format(end) for end in (value.low, value.high)]
    interval = f" ({ends[0]} to {ends[1]})" if (value.low, value.high) != (None, None) else ""
    return form.format(value.value) + interval


def _split(parts: dict[str, float]) -> Table:
    table = Table("part of a step", "time", "share", "speed-up if free", box=None, header_style="bold")
    table.title, table.title_justify = "mean step over the schedule, the device waited for after each part", "left"
    for name, share, limit in limits(parts):
        table.add_row(name, f"{1000 * parts[name]:,.2f} ms", f"{share:.1%}", f"{limit:.3f}")
    return table
