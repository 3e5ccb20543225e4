"""`train ablate`: the grid of a recipe's algorithms, their effects in finished runs, and the parts of a step."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from launcher.cli.console import console
from launcher.cli.estimate import seconds
from launcher.config.compose import compose
from launcher.records.measured import Measured as MeasuredSteps
from launcher.study.ablation import Effect, Measured, Variant, effects, grid, limits, measured_of
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
    runs = [read_run(path) for path in folders]
    found = {name: measured_of(compose(words).config, runs) for name, words in commands.items()}
    changes = effects(variants, found)
    parts = {} if arguments.grid else _parts(arguments)
    if arguments.json:
        print(json.dumps(_as_json(variants, commands, found, changes, parts), indent=2))
        return 0
    out = console()
    out.print(_grid(commands, found))
    if changes:
        out.print(_effects(changes))
    if parts:
        out.print(_split(parts))
    return 0


def _holds_runs(path: Path) -> bool:
    return path.is_dir() and any(path.glob("**/config.yaml"))


def _parts(arguments: argparse.Namespace) -> dict[str, float]:
    """Mean seconds of a step of the whole recipe, waiting for data and copies included."""
    from launcher.launch.measuring import measure_parts, measure_steps, real_plan
    from launcher.study.estimate import mean_sizes

    plan = real_plan(compose(arguments.overrides))
    steps: MeasuredSteps = measure_steps(plan, arguments.seconds)
    sizes = mean_sizes(plan, steps)
    waited = sum(size.steps * max(0.0, size.both_seconds - size.step_seconds) for size in sizes) / plan.total_steps
    transfer = sum(steps.transfer_seconds) / len(steps.transfer_seconds)
    overlapped = {"data": max(0.0, waited - transfer), "transfer": min(transfer, waited)}
    return {**overlapped, **measure_parts(plan, arguments.seconds)}


def _as_json(
    variants: list[Variant],
    commands: dict[str, list[str]],
    found: dict[str, Measured | None],
    changes: list[Effect],
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
    return {"grid": rows, "effects": [asdict(change) for change in changes], "split": split}


def _grid(commands: dict[str, list[str]], found: dict[str, Measured | None]) -> Table:
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


def _split(parts: dict[str, float]) -> Table:
    table = Table("part of a step", "time", "share", "speed-up if free", box=None, header_style="bold")
    table.title, table.title_justify = "mean step over the schedule, the device waited for after each part", "left"
    for name, share, limit in limits(parts):
        table.add_row(name, f"{1000 * parts[name]:,.2f} ms", f"{share:.1%}", f"{limit:.3f}")
    return table
