"""`train ablate`: the ablation grid of a recipe, effects of its algorithms in finished runs, parts of a step."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from launcher.cli.estimate import seconds
from launcher.config.compose import Composed
from launcher.config.layers import COMMAND_LINE
from launcher.config.resolved import digest
from launcher.console import console, only_json, print_json, table, verbatim
from launcher.data.identity import identity_if_present
from launcher.errors import Problem, UserError
from launcher.records.run import read_run
from launcher.records.run_folder import run_folders
from launcher.records.scales import scale_of
from launcher_lab.cli.grid import Cell, expand, on_a_recipe, without_trials
from launcher_lab.cli.grid_job import take_job_words
from launcher_lab.cli.training import add_options, as_started, train
from launcher_lab.study import ablation
from launcher_lab.study.ablation import Effect, GridRow, Tradeoff, Variant, alternatives, variant_result
from launcher_lab.study.speedup import Interval

EXAMPLES = [
    "train ablate recipe=hot dataset.path=/data/imagenet",
    "train ablate recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 --seconds 0.5",
    "train ablate recipe=hot --grid --json",
    "train ablate recipe=small dataset.path=/data/flowers epochs=10,20 seed=0,1 --with mixup --with loss=bce --run",
    "train ablate --slurm --run recipe=mild epochs=36,72 seed=0,1 dataset.path=/data/imagenet submit.time=08:00:00",
]
_SEVERAL = ("epochs", "seed", "schedule.dilate")
_KINDS = {"without": "removing it", "only": "adding only it", "with": "adding it to all"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="epochs and seed take several values")
    more = "add a row: all algorithms and this one, or this key=value; several values make several rows"
    parser.add_argument("--with", dest="more", action="append", default=[], metavar="WORDS", help=more)
    parser.add_argument("--run", action="store_true", help="first train the missing runs, like `train curve`")
    add_options(parser, "with --run: ")
    parser.add_argument("--grid", action="store_true", help="print only the grid and its runs; measure nothing")
    parser.add_argument(
        "--seconds", type=seconds, default=1.0, metavar="S", help="seconds per kind of step (default: 1)"
    )


def main(arguments: argparse.Namespace) -> int:
    job_words = take_job_words(arguments)
    words, _ = without_trials(arguments.overrides)
    # note: an interval is refused with both words
    arguments.overrides = words if any("interval(" in word for word in words) else arguments.overrides
    _check_several(arguments.overrides)
    arguments.overrides = on_a_recipe("ablate", arguments)
    composed = expand(arguments.overrides)[0].composed
    variants = ablation.grid(list(composed.config.algorithms), arguments.more)
    cells = {variant: expand([*arguments.overrides, *variant.words], variant.name) for variant in variants}
    if arguments.slurm and not arguments.run:
        raise UserError("--slurm submits the missing runs; add --run")
    if arguments.slurm and arguments.json:
        raise UserError("--slurm prints no result yet; omit --json")
    if arguments.parallel != 1 and not arguments.run:
        raise UserError(Problem("needs --run, which trains the missing runs", "--parallel", arguments.parallel))
    if arguments.run:
        code = _train_missing([cell for row in cells.values() for cell in row], arguments, job_words)
        if code != 0 or arguments.slurm:
            return code
    rows = _rows(cells, must_exist=not arguments.grid)
    effect_list, tradeoff_list = ablation.effects(rows), ablation.tradeoffs(rows)
    parts = {} if arguments.grid else _parts(composed, arguments.seconds)
    commands = {
        variant: ["train", *(["curve"] if len(row) > 1 else []), *arguments.overrides, *variant.words]
        for variant, row in cells.items()
    }
    if arguments.json:
        print_json(_as_json(rows, commands, effect_list, tradeoff_list, parts))
        return 0
    out = console()
    title = scale_of(composed.config.task.primary).heading
    out.print(_grid(rows, commands, title))
    if tradeoff_list:
        out.print(_effects(effect_list, title.replace(" %", " points")))
        out.print(_tradeoffs(tradeoff_list, "points" if title.endswith("%") else title))
    if parts:
        out.print(_split(parts))
    return 0


def _check_several(words: Sequence[str]) -> None:
    """Check that only lengths and seeds have several values.

    Raises UserError if another key has several values.
    """
    message = "takes one value here; use --with for several values, one row per value"
    several = [word.partition("=") for word in words if len(alternatives(word, 2) or ()) > 1]
    wrong = [Problem(message, key, value, COMMAND_LINE) for key, _, value in several if key not in _SEVERAL]
    if wrong:
        raise UserError(*wrong)


def _train_missing(cells: Sequence[Cell], arguments: argparse.Namespace, job_words: Sequence[str]) -> int:
    """Train or submit the unfinished runs, the first seed of every row first; return the exit code."""
    flags = [f"--with={words}" for words in arguments.more] + [f"--seconds={arguments.seconds}"]
    command = ["ablate", "--run", *(["--grid"] if arguments.grid else []), *flags, *arguments.overrides]
    distinct: dict[str, Cell] = {}
    for cell in cells:
        # note: of two algorithms, without one is only the other
        distinct.setdefault(digest(cell.composed.config), cell)
    seeds = list(dict.fromkeys(cell.composed.config.seed for cell in cells))
    by_seed = sorted(distinct.values(), key=lambda cell: seeds.index(cell.composed.config.seed))
    outcomes: dict[Path, str] = {}
    with only_json(arguments.json):
        code = train(by_seed, arguments, [command], job_words, outcomes)
    return code or int("failed" in outcomes.values())


def _rows(cells: Mapping[Variant, Sequence[Cell]], *, must_exist: bool) -> list[GridRow]:
    """Return each variant at each length, with its finished runs below `runs`.

    Raises UserError if a run cannot start; `must_exist`: its images must be on this machine.
    """
    # note: seeds do not differ in what decides
    lengths = {(variant, cell.epochs): cell for variant, row in cells.items() for cell in row}
    runs_of = Path(next(iter(lengths.values())).composed.config.runs)
    summaries = [read_run(path) for path in sorted(folder.path for folder in run_folders(runs_of))]
    if not summaries:
        return [GridRow(variant, epochs, None) for variant, epochs in lengths]
    prepared = {one: as_started(cell, here=True, must_exist=must_exist) for one, cell in lengths.items()}
    first = next(iter(prepared.values()))
    identity = identity_if_present(first.plan.config, first.skipped, first.images)
    configs = {one: run.plan.config for one, run in prepared.items()}
    runs = ablation.comparable([*configs.values()], summaries, identity)
    return [GridRow(variant, epochs, ablation.curve_of(config, runs)) for (variant, epochs), config in configs.items()]


def _parts(composed: Composed, each: float) -> dict[str, float]:
    """Measure the mean seconds of each part of a step, including waits for data and copies."""
    from launcher.measure.launch import measure, measure_steps, prepare_here

    prepared = prepare_here(composed)
    from launcher.prediction.step_parts import waiting  # note: imports torch, so only after all checks

    return {
        **waiting(prepared.plan, measure_steps(prepared, each)),
        **measure(prepared, "launcher.prediction.step_parts:time_parts", each, dict[str, float]),
    }


def _as_json(
    rows: Sequence[GridRow],
    commands: Mapping[Variant, list[str]],
    effect_list: Sequence[Effect],
    tradeoff_list: Sequence[Tradeoff],
    parts: dict[str, float],
) -> dict[str, object]:
    listed = []
    for row in rows:
        measured = asdict(variant_result(row.result)) if row.result else None
        own = {"epochs": row.epochs, "command": commands[row.variant], "measured": measured}
        listed.append({**asdict(row.variant), **own})
    split = [
        {"part": name, "seconds": parts[name], "share": share, "speedup_limit": limit}
        for name, share, limit in ablation.limits(parts)
    ]
    return {
        "grid": listed,
        "effects": [asdict(one) for one in effect_list],
        "tradeoff": [asdict(one) for one in tradeoff_list],
        "split": split,
    }


def _grid(rows: Sequence[GridRow], commands: Mapping[Variant, list[str]], title: str) -> Table:
    cells = table("variant", "epochs", "runs", title, "minutes", "command")
    for row in rows:
        result = variant_result(row.result) if row.result else None
        numbers = (str(result.runs), f"{result.top1:.2f}", f"{result.minutes:.1f}") if result else ("-",) * 3
        command = verbatim(shlex.join(commands[row.variant]))
        cells.add_row(verbatim(row.variant.name), str(row.epochs), *numbers, command)
    return cells


def _effects(effect_list: Sequence[Effect], gain: str) -> Table:
    columns = ("algorithm", "measured by", "epochs", f"{gain} (95 % interval; corrected p)", "training time")
    rows = (
        (verbatim(one.algorithm), _KINDS[one.kind], str(one.epochs), _number(one.top1, "{:+.2f}"), f"{one.time:+.1%}")
        for one in effect_list
    )
    return table(*columns, rows=rows)


def _tradeoffs(tradeoff_list: Sequence[Tradeoff], gained: str) -> Table:
    cells = table("algorithm", "epochs", "compared with", "speed-up at equal quality", f"{gained} at equal time")
    for one in tradeoff_list:
        bounds = f"at least {one.at_least:.2f}x; " if one.at_least else ""
        bounds += f"at most {one.at_most:.2f}x; " if one.at_most else ""
        speedup = _number(one.speedup, "{:.2f}x") or verbatim(bounds + one.why_no_speedup)
        gain = _number(one.gain, "{:+.2f}") or verbatim(one.why_no_gain)
        cells.add_row(verbatim(one.algorithm), str(one.epochs), one.base, speedup, gain)
    return cells


def _number(value: Interval | None, form: str) -> str:
    """Format a value, with its 95 % interval and its corrected p-value if it has them."""
    if value is None:
        return ""
    p = "" if value.p_corrected is None else f"; p {value.p_corrected:.2g}"
    interval = value.interval(form)
    return form.format(value.value) + (f" ({interval}{p})" if interval else "")


def _split(parts: dict[str, float]) -> Table:
    cells = table("part of a step", "time", "share", "speed-up if free")
    cells.title, cells.title_justify = "mean step over the schedule, synchronized after each part", "left"
    for name, share, limit in ablation.limits(parts):
        cells.add_row(name, f"{1000 * parts[name]:,.2f} ms", f"{share:.1%}", f"{limit:.3f}")
    return cells
