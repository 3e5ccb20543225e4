"""`train plan --on MACHINE`: predict time and cost on other machines from counted steps, without a GPU."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from launcher.cli.budget import choose
from launcher.config.compose import Composed, compose
from launcher.config.gpus import check_gpu, efficiencies
from launcher.config.groups import price_age
from launcher.config.tasks import TaskConfig
from launcher.console import console, print_json, table, verbatim
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.installation import page
from launcher.prediction.lengths import Length, length_for
from launcher.prediction.machines import ALL, machine_named, rented
from launcher.prediction.offers import Offer, network_problem
from launcher.prediction.on_machines import offers_on
from launcher.prediction.prediction import Prediction, main_bound
from launcher.records.progress import duration
from launcher.results.published import known_curves

_MOST_PHASES = 6  # in the table of one machine


def predict(arguments: argparse.Namespace) -> int:
    """Print the prediction for `--on`, or the choices for `--budget`.

    Raises UserError if a quality is no percentage, or has no machine.
    """
    _check_quality(arguments)
    known = rented()
    notes: list[str] = []
    named = None if arguments.on in (None, ALL) else machine_named(arguments.on, known)
    if named is not None and named.nodes > 1:
        arguments.overrides = _on_several(arguments, named.nodes)
    if arguments.budget is not None:
        name = _typed_hardware(arguments) if arguments.on is None else named and named.machine
        return choose(arguments, [known[name]] if name in known else [*known.values()])
    composed = compose([*arguments.overrides, *([] if named is None else [f"hardware={named.machine}"])])
    if arguments.quality is not None:
        length = _length(arguments, composed)
        notes.append(f"{count_of(length.epochs, 'epoch')} for {arguments.quality:g} %: {length.source}")
        composed = replace(composed, config=replace(composed.config, epochs=length.epochs))
    config = composed.config
    if arguments.on != ALL:
        check_gpu(config.hardware, "--on")
    chosen = list(known.values()) if arguments.on == ALL else [config.hardware]
    candidates, more, remedies = offers_on(composed, chosen)
    notes += more
    if config.task.axes == 1:
        compared = f"{page('cost', 'prediction')} compares it with published ones of language models"
        notes.append(f"fitted to steps on images; {compared}")
    if arguments.on != ALL and (problem := candidates[0].problem):
        of_network = problem == network_problem(config, config.hardware)
        key, value = ("hardware.network", None) if of_network else ("device_batch_size", config.device_batch_size)
        raise UserError(Problem(problem, key, value))
    if arguments.json:
        print_json({"notes": [*remedies, *notes], "offers": [_values(offer) for offer in candidates]})
        return 0
    _print(candidates, notes, remedies, config.task, everything=arguments.on == ALL)
    return 0


def _check_quality(arguments: argparse.Namespace) -> None:
    quality = arguments.quality
    if quality is None:
        return
    if not 1 < quality <= 100:
        hint = f"; did you mean {100 * quality:g}?" if 0 < quality <= 1 else ""
        raise UserError(Problem(f"must be a top-1 in percent, above 1 and up to 100{hint}", "--quality", quality))
    if arguments.on is arguments.budget is None:
        raise UserError(Problem("needs --on MACHINE or --on all", "--quality", quality))


def _typed_hardware(arguments: argparse.Namespace) -> str | None:
    words = (word.lstrip("+").partition("=") for word in arguments.overrides)
    return next((value for name, _, value in reversed([*words]) if name == "hardware"), None)


def _on_several(arguments: argparse.Namespace, nodes: int) -> list[str]:
    """Return the words with a number of nodes.

    Raises UserError if they have one.
    """
    words: list[str] = list(arguments.overrides)
    if any(word.startswith("launch.nnodes=") for word in words):
        message = f"has {count_of(nodes, 'machine')}; omit launch.nnodes="
        raise UserError(Problem(message, "--on", arguments.on))
    return [*words, f"launch.nnodes={nodes}"]


def _length(arguments: argparse.Namespace, composed: Composed) -> Length:
    config = composed.config
    if (primary := config.task.primary).name != "top1":
        message = f"is a top-1, and task={config.task.name} has {primary.title}; set epochs= instead"
        raise UserError(Problem(message, "--quality", arguments.quality))
    if any(word.startswith("epochs=") for word in arguments.overrides):
        message = "sets the length already; omit epochs= or --quality"
        raise UserError(Problem(message, "--quality", arguments.quality))
    runs = [config.runs] if any(Path(config.runs).glob("*/metrics.jsonl")) else []
    curves = known_curves(map(str, runs))
    return length_for(arguments.quality, str(config.recipe), curves)


def _values(offer: Offer) -> dict[str, Any]:
    prediction = offer.prediction
    return {
        "machine": offer.machine.name,
        "nodes": offer.nodes,
        "gpu": f"{offer.machine.gpus}x {offer.machine.gpu}",
        "spot": offer.spot,
        "minutes": offer.wall.values(60),
        "training_minutes": prediction.estimate.training.values(60),
        "cost": offer.cost.values() | {"currency": offer.machine.currency} if offer.cost else None,
        "samples_per_second": prediction.estimate.samples_per_second,
        "phases": list(map(asdict, prediction.phases)),
        "memory_gigabytes": prediction.memory_gigabytes,
        "problem": offer.problem or None,
        "front": offer.front,
        "made_from": prediction.made_from,
        "price_of": price_age(offer.machine),
    }


def _print(
    candidates: Sequence[Offer], notes: Sequence[str], remedies: Sequence[str], task: TaskConfig, *, everything: bool
) -> None:
    out = console()
    out.print(_list_of(candidates) if everything else _table_of(candidates, task))
    for remedy in remedies:
        out.print(verbatim(f"note: {remedy}"), style="yellow")
    if not everything:
        prediction = candidates[0].prediction
        out.print(_phases_of(prediction, task))
        estimate = prediction.estimate
        out.print(verbatim(
            f"{count_of(estimate.evaluations, 'evaluation')}: {duration(estimate.evaluation.seconds)}, checkpoints "
            f"{duration(estimate.saving.seconds)}; memory {prediction.memory_gigabytes:.1f} GB per GPU"
        ))  # fmt: skip
    for made_from in dict.fromkeys(offer.prediction.made_from for offer in candidates):
        out.print(verbatim(f"source: {made_from}"))
    unlisted = _left_out(candidates) if everything else []
    for note in [*notes, *unlisted, *_price_notes(candidates)]:
        out.print(verbatim(f"note: {note}"), style="yellow")


def _price_notes(candidates: Sequence[Offer]) -> list[str]:
    notes = []
    if any(offer.spot for offer in candidates):
        spot = efficiencies()["spot"]
        notes.append(
            f"spot: assumes {spot['interruptions_an_hour']:g} interruptions an hour, {spot['minutes_until_restart']:g} "
            "minutes until the run resumes from its newest checkpoint"
        )
    bare = list(dict.fromkeys(offer.machine.name for offer in candidates if offer.cost is None))
    if bare:
        notes.append(f"no price for {', '.join(bare)}; set hardware.price_per_hour=2.5")
    return notes


def _list_of(candidates: Sequence[Offer]) -> Table:
    """Return a row per possible offer, without ranges, in at most 100 columns."""
    columns = ("", "machine", "GPUs", "price", "wall clock", "cost", "bottleneck")
    cells = table(*columns, numbers=("wall clock", "cost"))
    for offer in candidates:
        if not offer.problem:
            cells.add_row(
                "*" if offer.front else "", *_what(offer), duration(offer.wall.seconds), _money(offer),
                main_bound(offer.prediction.phases),
            )  # fmt: skip
    cells.caption, cells.caption_justify = "*: no other machine is both cheaper and faster", "left"
    return cells


def _left_out(candidates: Sequence[Offer]) -> list[str]:
    """Return a note for each reason why machines cannot run, and for each age of prices that are old or undated."""
    groups: dict[str, list[str]] = {}
    for offer in candidates:
        age = price_age(offer.machine)
        if offer.problem:
            groups.setdefault(f"not possible: {offer.problem}", []).append(offer.machine.name)
        elif offer.cost and age != offer.machine.price_date:
            groups.setdefault(f"price: {age}", []).append(offer.machine.name)
    return [f"{reason}: {', '.join(dict.fromkeys(names))}" for reason, names in groups.items()]


def _table_of(candidates: Sequence[Offer], task: TaskConfig) -> Table:
    """Return the offers of one machine with their ranges."""
    columns = ("machine", "GPUs", "price", "wall clock", "", "cost", "", task.speeds[1], "bottleneck", "price date")
    cells = table(*columns, numbers=("wall clock", "cost", task.speeds[1]))
    for offer in candidates:
        cost = offer.cost
        cells.add_row(
            *_what(offer), duration(offer.wall.seconds), f"{duration(offer.wall.low)} to {duration(offer.wall.high)}",
            _money(offer), f"{cost.low:,.2f} to {cost.high:,.2f}" if cost else "",
            f"{task.speed(offer.prediction.estimate.samples_per_second):,.0f}", main_bound(offer.prediction.phases),
            verbatim(price_age(offer.machine)) if cost else "",
        )  # fmt: skip
    return cells


def _phases_of(prediction: Prediction, task: TaskConfig) -> Table:
    """Return the steps and the bottleneck at some of the views."""
    cells = table(task.view_title, "steps", "step time", "bottleneck")
    phases = prediction.phases
    last = len(phases) - 1
    shown = sorted({round(last * row / (_MOST_PHASES - 1)) for row in range(_MOST_PHASES)})
    for phase in (phases[number] for number in shown):
        cells.add_row(str(phase.view), f"{phase.steps:,}", f"{1000 * phase.seconds:,.1f} ms", phase.bound)
    return cells


def _what(offer: Offer) -> tuple[str, str, str]:
    machine = offer.machine
    several = f"{offer.nodes} x " if offer.nodes > 1 else ""
    return (
        verbatim(several + machine.name),
        verbatim(f"{machine.gpus} x {machine.gpu}"),
        "spot" if offer.spot else "on demand",
    )


def _money(offer: Offer) -> str:
    return f"{offer.cost.seconds:,.2f} {verbatim(offer.machine.currency)}" if offer.cost else "-"
