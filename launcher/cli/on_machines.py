"""`train plan --on MACHINE`: predict time and cost on other machines from counted steps, without a GPU."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.cli.budget import choose
from launcher.cli.machine_offers import epochs_in, offers_on, span_values
from launcher.cli.offer_tables import left_out, list_of, phases_of, table_of
from launcher.config.compose import Composed, compose
from launcher.config.fields import target_parts
from launcher.config.gpus import check_gpu
from launcher.config.groups import price_age
from launcher.config.tasks import TaskConfig
from launcher.console import console, print_json, verbatim
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.installation import page
from launcher.prediction.machines import ALL, machine_named, rented
from launcher.prediction.offers import Length, Offer, length_for, network_problem
from launcher.prediction.rates import efficiencies
from launcher.records.progress import duration


def predict(arguments: argparse.Namespace) -> int | None:
    """Print the prediction; return None without a machine."""
    _take_quality(arguments)
    if arguments.budget is None and not _has_machine(arguments):
        return None
    known = rented()
    notes: list[str] = []
    named = None if arguments.on in (None, ALL) else machine_named(arguments.on, known)
    if named is not None and named.nodes > 1:
        arguments.overrides = _on_several(arguments, named.nodes)
    if arguments.budget is not None:
        name = _typed(arguments, "hardware") if named is None and arguments.on is None else named and named.machine
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
        print_json({"notes": [*remedies, *notes], "offers": list(map(_values, candidates))})
        return 0
    _print(candidates, notes, remedies, config.task, everything=arguments.on == ALL)
    return 0


def _take_quality(arguments: argparse.Namespace) -> None:
    """Set the quality that a target beside a budget has.

    Raises UserError if a quality is no percentage.
    """
    target = _typed(arguments, "target")
    if arguments.budget is not None and target is not None and arguments.quality is None:
        arguments.quality = _quality_of(target)
    quality = arguments.quality
    if quality is not None and not 1 < quality <= 100:
        hint = f"; did you mean {100 * quality:g}?" if 0 < quality <= 1 else ""
        raise UserError(Problem(f"must be a top-1 in percent, above 1 and up to 100{hint}", "--quality", quality))


def _quality_of(target: str) -> float:
    """Return the top-1 of a target in percent.

    Raises UserError if it is another metric.
    """
    try:
        metric, value = target_parts(target)
    except ValueError as error:
        raise UserError(Problem(str(error), "target", target)) from None
    if metric not in (None, "top1"):
        raise UserError(Problem("beside a budget must be a top-1, such as 0.759", "target", target))
    return 100 * value


def _typed(arguments: argparse.Namespace, key: str) -> str | None:
    """Return the value of a key's last word."""
    words = (word.lstrip("+").partition("=") for word in arguments.overrides)
    return next((value for name, _, value in reversed([*words]) if name == key), None)


def _has_machine(arguments: argparse.Namespace) -> bool:
    """Return whether the command line has a machine whose time and cost are requested.

    Raises UserError if an option needs a machine and there is none.
    """
    if arguments.on is not None:
        return True
    if arguments.quality is not None:
        raise UserError(Problem("needs --on MACHINE or --on all", "--quality", arguments.quality))
    return False


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
    """Return the length for the quality; published minutes are those of the epochs that fit into them, as predicted."""
    from launcher.results.published import known_curves  # note: numpy and more

    config = composed.config
    if (primary := config.task.primary).name != "top1":
        message = f"is a top-1, and task={config.task.name} has {primary.title}; set epochs= instead"
        raise UserError(Problem(message, "--quality", arguments.quality))
    if any(word.startswith("epochs=") for word in arguments.overrides):
        message = "sets the length already; omit epochs= or --quality"
        raise UserError(Problem(message, "--quality", arguments.quality))
    runs = [config.runs] if any(Path(config.runs).glob("*/metrics.jsonl")) else []
    curves = known_curves(map(str, runs))
    return length_for(arguments.quality, str(config.recipe), curves, epochs_in)


def _values(offer: Offer) -> dict[str, Any]:
    prediction = offer.prediction
    return {
        "machine": offer.machine.name,
        "nodes": offer.nodes,
        "gpu": f"{offer.machine.gpus}x {offer.machine.gpu}",
        "spot": offer.spot,
        "minutes": span_values(offer.wall, 60),
        "training_minutes": span_values(prediction.estimate.training, 60),
        "cost": span_values(offer.cost) | {"currency": offer.machine.currency} if offer.cost else None,
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
    out.print(list_of(candidates) if everything else table_of(candidates, task))
    for remedy in remedies:
        out.print(verbatim(f"note: {remedy}"), style="yellow")
    if not everything:
        prediction = candidates[0].prediction
        out.print(phases_of(prediction, task))
        estimate = prediction.estimate
        out.print(verbatim(
            f"{count_of(estimate.evaluations, 'evaluation')}: {duration(estimate.evaluation.seconds)}, checkpoints "
            f"{duration(estimate.saving.seconds)}; memory {prediction.memory_gigabytes:.1f} GB per GPU"
        ))  # fmt: skip
    for made_from in dict.fromkeys(offer.prediction.made_from for offer in candidates):
        out.print(verbatim(f"source: {made_from}"))
    unlisted = left_out(candidates) if everything else []
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
