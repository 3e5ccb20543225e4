"""`train plan --budget 25usd`: the recipes, lengths and machines that a time or an amount of money pays for."""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from launcher.config import recipes
from launcher.config.budget import Budget
from launcher.config.compose import Composed, compose
from launcher.config.schema import Hardware
from launcher.console import console, progress_bars, table, verbatim
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.records.progress import duration
from launcher_lab.cli.machine_offers import epochs_in, offers_on, span_values
from launcher_lab.predict.budget import Choice, Length, affordable, best, rising, spent, worthwhile
from launcher_lab.predict.offers import Offer
from launcher_lab.study.curves import Curve
from launcher_lab.study.results import read_results


def choose(arguments: argparse.Namespace, machines: Sequence[Hardware]) -> int:
    """Print the best choices on some machines.

    Raises UserError with what can be reached if the budget does not pay for the quality.
    """
    words, quality, paid = list(arguments.overrides), arguments.quality, Budget.of(arguments.budget, "--budget")
    if any(word.startswith(("epochs=", "schedule.dilate=")) for word in words):
        raise UserError(Problem("chooses the epochs; omit epochs=", "--budget", arguments.budget))
    typed = [word for word in words if not word.startswith("recipe=")]
    # note: published qualities are those of FFCV files
    typed += [] if any(word.startswith("dataloader=") for word in words) else ["dataloader=ffcv"]
    choices, least = list[Choice](), list[Choice]()
    with progress_bars(console(sys.stderr)) as (_, report):
        known = _lengths(words, compose(typed))
        for number, (recipe, lengths) in enumerate(known.items()):
            report(f"predicting {recipe}", number, len(known))
            for offers, more in _by_price(recipe, lengths, typed, machines):
                any_amount, wanted = replace(paid, amount=math.inf), quality or lengths[0].quality
                for several, budget, top1 in ((choices, paid, quality), (least, any_amount, wanted)):
                    if choice := affordable(recipe, lengths, offers, budget, top1):
                        several.append(replace(choice, words=more))
    chosen = best(choices, quality)
    if not chosen:
        raise UserError(Problem(_why_none(known, least, paid, quality), "--budget", arguments.budget))
    if arguments.json:
        print(json.dumps({"choices": [_values(choice, typed) for choice in chosen]}, indent=2))
        return 0
    out = console()
    out.print(_table(chosen))
    for choice in chosen:
        out.print(verbatim(f"train plan {' '.join(_words(choice, typed))} --on {choice.offer.machine.name}"))
    source = "published results with FFCV files, and your runs; times are predicted, nothing was measured"
    out.print(verbatim(f"note: quality from {source}"), style="yellow")
    return 0


def _lengths(words: Sequence[str], composed: Composed) -> dict[str, list[Length]]:
    """Return the known lengths of the recipe of the command line, or of all that may be worth their cost."""
    config = composed.config
    named = [word.removeprefix("recipe=") for word in words if word.startswith("recipe=")]
    runs = [config.runs] if any(Path(config.runs).glob("*/metrics.jsonl")) else []
    dataset = next((word.removeprefix("dataset=") for word in words if word.startswith("dataset=")), "imagenet")
    curves = [
        one for one in read_results([*map(str, runs)], published=True).all_curves if one.setting.dataset == dataset
    ]
    known: dict[str, list[Length]] = {}
    listed = {recipe.name for recipe in recipes.listing()}
    for recipe in named or [name for name in worthwhile(curves) if name in listed]:
        model = compose([f"recipe={recipe}"]).config.model.architecture
        own = [one for one in curves if one.recipe == recipe and one.setting.model == model]
        if lengths := rising(length for curve in own for length in _of(curve)):
            known[recipe] = lengths
    if not known:
        message = f"no length of {named[0] if named else 'any recipe'} has a known quality on {dataset}"
        raise UserError(Problem(f"{message}; measure some with `train curve`", "--budget", None))
    return known


def _of(curve: Curve) -> list[Length]:
    lengths = []
    for point in curve.points:
        epochs, minutes = point.epochs, point.cost("time")
        if epochs is None and minutes is not None:
            epochs = epochs_in(minutes, curve.recipe, curve.setting.hardware)
        if epochs is not None:
            lengths.append(Length(epochs, point.quality))
    return lengths


def _by_price(
    recipe: str, lengths: Sequence[Length], words: Sequence[str], machines: Sequence[Hardware]
) -> Iterator[tuple[list[Offer], tuple[str, ...]]]:
    """Yield the offers for each length, by machine and price, and the words with which a step fits into its memory."""
    offers: dict[tuple[str, bool], list[Offer]] = {}
    for length in lengths:
        composed = compose([f"recipe={recipe}", f"epochs={length.epochs}", *words])
        for offer in offers_on(composed, machines).offers:
            offers.setdefault((offer.machine.name, offer.spot), []).append(offer)
    smaller: dict[int, set[str]] = {}
    for (name, _), several in offers.items():
        parts = [offer.fitting for offer in several if offer.fitting is not None]
        if parts and not any(word.startswith("device_batch_size=") for word in words):
            smaller.setdefault(min(parts), set()).add(name)
        else:
            yield several, ()
    for part, names in smaller.items():
        word = f"device_batch_size={part}"
        for several, _ in _by_price(recipe, lengths, [*words, word], [one for one in machines if one.name in names]):
            yield several, (word,)


def _why_none(known: dict[str, list[Length]], least: Sequence[Choice], paid: Budget, quality: float | None) -> str:
    """Return why nothing can be chosen, with what can be."""
    highest = max(lengths[-1].quality for lengths in known.values())
    if quality is not None and quality > highest:
        return f"no known length reaches {quality:g} %; the highest known quality is {highest:g} %"
    able = [choice for choice in least if math.isfinite(spent(paid, choice.offer))]
    if not able:
        return "no machine can run it, or has a price in this currency"
    choice = min(able, key=lambda one: spent(paid, one.offer))
    least_amount = spent(paid, choice.offer)
    amount = duration(least_amount) if paid.currency is None else f"{least_amount:,.2f} {paid.currency}"
    return (
        f"is not enough; {choice.quality:.1f} % take at least {amount}: {choice.recipe} with "
        f"{count_of(choice.epochs, 'epoch')} on {_place(choice)}"
    )


def _place(choice: Choice) -> str:
    offer = choice.offer
    several = f"{offer.nodes} x " if offer.nodes > 1 else ""
    return f"{several}{offer.machine.name}{' (spot)' if offer.spot else ''}"


def _words(choice: Choice, typed: Sequence[str]) -> list[str]:
    return [f"recipe={choice.recipe}", f"epochs={choice.epochs}", *choice.words, *typed]


def _table(chosen: Sequence[Choice]) -> Table:
    columns = ("recipe", "epochs", "top-1", "known", "machine", "wall clock", "cost")
    cells = table(*columns, numbers=("epochs", "top-1", "wall clock", "cost"))
    for choice in chosen:
        (low, high), cost, currency = choice.known, choice.offer.cost, choice.offer.machine.currency
        cells.add_row(
            choice.recipe,
            str(choice.epochs),
            f"{choice.quality:.1f} %",
            f"{low:g} %" if low == high else f"{low:g} to {high:g} %",
            _place(choice),
            duration(choice.offer.wall.seconds),
            f"{cost.seconds:,.2f} {currency} ({cost.low:,.2f} to {cost.high:,.2f})" if cost else "-",
        )
    return cells


def _values(choice: Choice, typed: Sequence[str]) -> dict[str, Any]:
    offer = choice.offer
    return {
        "recipe": choice.recipe,
        "epochs": choice.epochs,
        "top1": choice.quality,
        "known_top1": list(choice.known),
        "machine": offer.machine.name,
        "nodes": offer.nodes,
        "spot": offer.spot,
        "minutes": span_values(offer.wall, 60),
        "cost": span_values(offer.cost) | {"currency": offer.machine.currency} if offer.cost else None,
        "words": _words(choice, typed),
    }
