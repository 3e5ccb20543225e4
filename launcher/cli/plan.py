"""`train plan`: show what a run will do, without torch, a GPU or, for known data sets, data."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from rich.filesize import decimal
from rich.table import Table

from launcher.compute.host_memory import usable_memory
from launcher.config.compose import compose
from launcher.config.declaration import POINTS
from launcher.config.fields import size_value
from launcher.config.gpus import gpus
from launcher.config.recipes import Published, find, load
from launcher.config.schema import RunConfig
from launcher.console import console, facts, print_json, progress_bars, table, verbatim
from launcher.counts import count_of
from launcher.data.workers import Report
from launcher.doctor.machine import read_gpus
from launcher.launch.memory import host_need
from launcher.launch.prepare import Prepared, left_to_the_start, prepare_plan
from launcher.plan.counted import fitting_batch, step_bytes
from launcher.plan.plan import Plan

EXAMPLES = [
    "train plan recipe=hot epochs=240",
    "train plan recipe=mild batch_size=1024 launch.nproc=4",
    "train plan recipe=mild dataset=shapes model=resnet18 schedule.dilate=0.2",
    "train plan recipe=hot --json",
]
_ROWS = 10
_STAGES = 20  # a ramp of image sizes has more


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument("--on", metavar="MACHINE", help="predict time and cost on p5_48xlarge, 8xH100, 16xH100, or all")
    parser.add_argument(
        "--quality", type=float, metavar="TOP1", help="with --on: the length that reaches this top-1, percent"
    )
    parser.add_argument(
        "--budget", metavar="25usd|2h", help="choose recipe, epochs and machine: the best quality for it, or --quality"
    )


def main(arguments: argparse.Namespace) -> int:
    if not arguments.on is arguments.budget is arguments.quality is None:
        from launcher.cli.on_machines import predict  # note: NumPy and the data sources

        return predict(arguments)
    composed = arguments.composed or compose(arguments.overrides)
    with progress_bars(console(sys.stderr)) as (_, report):
        prepared = prepare_plan(composed, arguments.seen, report)
        memory = _memory(prepared, report)
        notes = [*_too_large(prepared.plan, memory), *prepared.notes]
    plan, later = prepared.plan, [*left_to_the_start(prepared)]
    if arguments.json:
        print_json({**_numbers(plan), "memory": memory, "notes": notes, "checked_at_the_start": later})
        return 0
    out, title = console(), plan.config.task.view_title
    out.print(_facts(plan, memory))
    out.print(_table_of(_timetable(plan), title))
    if 1 < len(stages := _stages(plan)) <= _STAGES:
        out.print(_table_of(stages, title))
    out.print(_order(plan.config))
    for note in notes:
        out.print(verbatim(f"note: {note}"), style="yellow")
    if later:
        out.print(verbatim(f"checked at the start: {', '.join(later)}"))
    return 0


def _published(config: RunConfig) -> list[Published]:
    """Return the published result of a config's recipe, at its length if there is one; none on another data set."""
    recipe = load(config.recipe) if config.recipe and find(config.recipe) else None
    if recipe is None or recipe.options.get("dataset") != config.dataset.name:
        return []
    return sorted(recipe.about.published, key=lambda result: result.epochs != config.epochs)[:1]


def _facts(plan: Plan, memory: dict[str, int | None]) -> Table:
    config = plan.config
    micro = (
        f" in {count_of(plan.accumulation, 'micro-batch')} of {plan.rank_batch // plan.accumulation}"
        if plan.accumulation > 1
        else ""
    )
    curve = f"{config.schedule.name}{', by whole epochs' if config.schedule.granularity == 'epoch' else ''}"
    held_out = (
        f" and {count_of(val, f'validation {config.task.sample}')}" if (val := config.dataset.val_samples) else ""
    )
    epochs = f"{count_of(plan.epochs, 'epoch')} x {count_of(plan.steps_per_epoch, 'step')}"
    rows = (
        ("recipe", config.recipe or "none"),
        *(("published", result.sentence) for result in _published(config)),
        ("model", f"{config.model.architecture}, {config.task.counted(config.dataset.classes)}"),
        (
            "data set",
            f"{config.dataset.name}, {count_of(plan.train_samples, f'training {config.task.sample}')}{held_out}",
        ),
        ("length", f"{epochs} = {count_of(plan.total_steps, 'step')}"),
        ("batch", f"{plan.batch_size} global = {plan.world_size} x {plan.rank_batch}{micro}"),
        ("learning rate", f"{plan.peak_lr:g} after {count_of(plan.warmup_steps, 'step')} of warmup, then {curve}"),
        ("evaluation", f"every {config.eval_every}, {config.task.sizes(config)}"),
        *(("memory", text) for text in [", ".join(_parts_of(memory))] if text),
    )
    return facts(rows)


def _memory(prepared: Prepared, report: Report) -> dict[str, int | None]:
    """Return the bytes that a run takes of the host, if that is this machine, and of a GPU, and those that these have.

    A step on a CPU is not counted: its trace takes seconds.
    """
    plan, is_here = prepared.plan, prepared.packages_seen
    host = host_need(plan, prepared.devices) if is_here else None
    step = total = None
    if prepared.devices.kind == "cuda":
        from launcher.prediction.prediction import counted_steps  # note: only for GPUs

        report(f"counting a step of {plan.config.model.architecture}", 0, 1)
        # note: a network of the user's that cannot be traced must not stop a plan
        with suppress(Exception):
            counted_steps(plan)
        step, gpu = step_bytes(plan), gpus().get(str(plan.config.hardware.gpu))
        of_these = [one.memory for one in read_gpus() or []] if is_here else [int(gpu.memory * 1e9)] if gpu else []
        total = min(of_these, default=None)
    available = usable_memory().available if is_here else None
    return {"host": host, "host_available": available, "device": step, "device_total": total}


def _too_large(plan: Plan, memory: dict[str, int | None]) -> Iterator[str]:
    """Yield a note if a step does not fit into the memory of a GPU."""
    step, total = memory["device"], memory["device_total"]
    if step and total and step > total:
        fitting = fitting_batch(plan, step, total)
        hint = f"device_batch_size={fitting} fits" if fitting else "not even one fits"
        held = count_of(plan.rank_batch // plan.accumulation, plan.config.task.sample)
        yield f"{held} at once need {decimal(step)} of a GPU's {decimal(total)}; {hint}"


def _parts_of(memory: dict[str, int | None]) -> Iterator[str]:
    for name, whole, of in (("host", "host_available", " available"), ("device", "device_total", "")):
        if (taken := memory[name]) is not None:
            total = memory[whole]
            yield f"{name} about {decimal(taken)}{f' of {decimal(total)}{of}' if total else ''}"
    if memory["host"] is not None and memory["device"] is None:
        yield "a step not counted"


def _numbers(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values: lengths in steps, image sizes in pixels."""
    config = plan.config
    return {
        "recipe": config.recipe,
        "model": config.model.architecture,
        "dataset": config.dataset.name,
        "classes": config.dataset.classes,
        "train_samples": plan.train_samples,
        "val_samples": config.dataset.val_samples,
        "processes": plan.world_size,
        "epochs": plan.epochs,
        "steps_per_epoch": plan.steps_per_epoch,
        "total_steps": plan.total_steps,
        "batch_size": plan.batch_size,
        "rank_batch": plan.rank_batch,
        "accumulation": plan.accumulation,
        "peak_lr": plan.peak_lr,
        "warmup_steps": plan.warmup_steps,
        "schedule": config.schedule.name,
        "eval_resize": plan.config.scaled_size(config.image.eval_resize),
        "eval_size": size_value(plan.evaluation_size),
        "timetable": _timetable(plan),
        "stages": _stages(plan),
        "order": {point: names for point in POINTS if (names := config.algorithms.acting(point))},
    }


def _shown_steps(plan: Plan) -> list[int]:
    """Return steps at even parts of the run's progress, and the end of the warmup."""
    last = plan.total_steps - 1
    changes = {step for step in (plan.warmup_steps,) if step < last}
    even = plan.progress(last) == last / plan.total_steps
    shown = {round(last * row / _ROWS) if even else min(last, plan.step_at(row / _ROWS)) for row in range(_ROWS + 1)}
    return sorted(shown | changes)


def _stages(plan: Plan) -> list[dict[str, float]]:
    """Return the stages of a run: epochs, view, values that follow the run, share of the compute (of all inputs)."""
    values = plan.config.algorithms
    lists = [len(getattr(own, key)) for own in values.values() for key in own.following(plan, 0)]

    def at(step: int) -> dict[str, float]:
        following = [(name, own.following(plan, step)) for name, own in values.items()]
        shown = {f"{name}.{key}": value for name, of in following for key, value in of.items()}
        return {"view": plan.view(step), **shown}

    steps = {steps[0] for steps in plan.of_equal_view(range(plan.total_steps))}.union(*map(plan.starts, lists))
    starts = [step for step in sorted(steps) if step == 0 or at(step) != at(step - 1)]
    return [
        {"stage": number, "step": start, "epochs": (end - start) / plan.steps_per_epoch}
        | at(start)
        | {"compute": (end - start) * plan.per_step(plan.view(start)) / plan.amount}
        for number, (start, end) in enumerate(pairwise([*starts, plan.total_steps]), 1)
    ]


def _timetable(plan: Plan) -> list[dict[str, float]]:
    return [
        {"epoch": step / plan.steps_per_epoch, "step": step, "lr": plan.lr(step), "view": plan.view(step)}
        for step in _shown_steps(plan)
    ]


def _table_of(rows: list[dict[str, float]], view_title: str) -> Table:
    names = {"lr": "learning rate", "view": view_title}
    forms = {"epoch": ".1f", "epochs": ".1f", "step": ",", "lr": ".5f", "compute": ".1%"}
    columns = [names.get(key, key) for key in rows[0]]
    cells = ([f"{value:{forms.get(key, 'g')}}" for key, value in row.items()] for row in rows)
    return table(*columns, numbers=columns, rows=cells)


def _order(config: RunConfig) -> Table:
    acting = ((point, config.algorithms.acting(point)) for point in POINTS)
    rows = ((point, " \u2192 ".join(map(verbatim, names))) for point, names in acting if names)
    return table("point of the loop", "algorithms, in order", rows=rows)
