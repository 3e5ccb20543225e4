"""`train plan --budget 25usd`: the recipes, lengths and machines that a time or an amount of money pays for."""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from launcher.cli.candidates import Candidates, candidates
from launcher.config.compose import compose
from launcher.config.hardware import Hardware
from launcher.console import console, progress_bars, table, verbatim
from launcher.counts import count_of
from launcher.errors import Problem, UserError, first_few
from launcher.prediction.budget import Affordable, Budget, Candidate, affordable, around, best, spent
from launcher.prediction.offers import Offer
from launcher.prediction.on_machines import offers_on
from launcher.records.progress import duration


def choose(arguments: argparse.Namespace, machines: Sequence[Hardware]) -> int:
    """Print the best choices on some machines.

    Raises UserError with what can be reached if the budget does not pay for the quality.
    """
    words, quality, paid = list(arguments.overrides), arguments.quality, Budget.of(arguments.budget, "--budget")
    _check(words, arguments.budget)
    currencies = sorted({one.currency for one in machines})
    if paid.currency is not None and paid.currency not in currencies:
        message = f"the prices are in {first_few(currencies)}; set an amount in it"
        raise UserError(Problem(message, "--budget", arguments.budget))
    choices, least = list[Affordable](), list[Affordable]()
    with progress_bars(console(sys.stderr)) as (_, report):
        data = candidates(words, max(one.gpus or 1 for one in machines))
        able = [replace(one, lengths=lengths) for one in data.several if (lengths := around(one.lengths, quality))]
        for number, candidate in enumerate(able):
            report(f"predicting {candidate.name}", number, len(able))
            for offers, more in _by_price(candidate, data, machines):
                count = 1 if quality is None else len(offers)
                shortest = replace(candidate, lengths=candidate.lengths[:count])
                any_amount = replace(paid, amount=math.inf)
                for several, choice in (
                    (choices, affordable(candidate, offers, paid, quality)),
                    (least, affordable(shortest, offers[:count], any_amount, quality)),
                ):
                    several += [] if choice is None else [replace(choice, words=more)]
    chosen = best(choices, quality)
    if not chosen:
        raise UserError(Problem(_why_none(data, least, paid, quality), "--budget", arguments.budget))
    if arguments.json:
        print(json.dumps({"choices": [_values(choice, data.words) for choice in chosen]}, indent=2))
        return 0
    out = console()
    out.print(_table(chosen))
    for choice in chosen:
        out.print(verbatim(f"train plan {' '.join(_words(choice, data.words))} --on {choice.offer.machine.name}"))
    unknown = "no run of these images is finished, so no top-1 is known, and the order is not one of quality"
    source = f"quality from {data.source}" if data.source else unknown
    out.print(verbatim(f"note: {source}; times are predicted, nothing was measured"), style="yellow")
    return 0


def _check(words: Sequence[str], budget: str) -> None:
    """Refuse words that limit the run as a budget does."""
    for key, message in (
        ("epochs", "chooses the epochs; omit epochs="),
        ("schedule.dilate", "chooses the epochs; omit schedule.dilate="),
        ("stop.minutes", "limits the time as stop.minutes does; omit one"),
        ("target", "has the quality to reach in --quality 76; omit target="),
    ):
        if any(word.lstrip("+").startswith(f"{key}=") for word in words):
            raise UserError(Problem(message, "--budget", budget))


def _by_price(
    candidate: Candidate, data: Candidates, machines: Sequence[Hardware], more: tuple[str, ...] = ()
) -> Iterator[tuple[list[Offer], tuple[str, ...]]]:
    """Yield the offers for each length, by machine and price, and the words with which a step fits into its memory."""
    offers: dict[tuple[str, bool], list[Offer]] = {}
    for length in candidate.lengths:
        words = [f"recipe={candidate.recipe}", f"epochs={length.epochs}", *candidate.words, *data.words, *more]
        for offer in offers_on(compose(words), machines, data.seen).offers:
            offers.setdefault((offer.machine.name, offer.spot), []).append(offer)
    smaller: dict[int, set[str]] = {}
    for (name, _), several in offers.items():
        parts = [offer.fitting for offer in several if offer.fitting is not None]
        if parts and not any(word.startswith("device_batch_size=") for word in (*data.words, *more)):
            smaller.setdefault(min(parts), set()).add(name)
        else:
            yield several, more
    for part, names in smaller.items():
        fitting = (f"device_batch_size={part}",)
        yield from _by_price(candidate, data, [one for one in machines if one.name in names], fitting)


def _why_none(data: Candidates, least: Sequence[Affordable], paid: Budget, quality: float | None) -> str:
    """Return why nothing can be chosen, with what can be."""
    qualities = [one.lengths[-1].quality or 0.0 for one in data.several]
    if quality is not None and not data.source:
        return f"no run of these images is finished, so none is known to reach {quality:g} %; omit the quality"
    if quality is not None and quality > max(qualities):
        return f"no known length reaches {quality:g} %; the highest known quality is {max(qualities):g} %"
    able = [choice for choice in least if math.isfinite(spent(paid, choice.offer))]
    if not able:
        return "no machine can run it, or has a price"
    choice = min(able, key=lambda one: spent(paid, one.offer))
    least_amount = spent(paid, choice.offer)
    amount = duration(least_amount) if paid.currency is None else f"{least_amount:,.2f} {paid.currency}"
    takes = "the shortest run takes" if choice.quality is None else f"{choice.quality:.1f} % take"
    return (
        f"is not enough; {takes} at least {amount}: {choice.candidate.name} with "
        f"{count_of(choice.epochs, 'epoch')} on {_place(choice)}"
    )


def _place(choice: Affordable) -> str:
    offer = choice.offer
    several = f"{offer.nodes} x " if offer.nodes > 1 else ""
    return f"{several}{offer.machine.name}{' (spot)' if offer.spot else ''}"


def _words(choice: Affordable, typed: Sequence[str]) -> list[str]:
    candidate = choice.candidate
    return [f"recipe={candidate.recipe}", f"epochs={choice.epochs}", *candidate.words, *choice.words, *typed]


def _table(chosen: Sequence[Affordable]) -> Table:
    columns = ("recipe", "epochs", "top-1", "known", "machine", "wall clock", "cost")
    cells = table(*columns, numbers=("epochs", "top-1", "wall clock", "cost"))
    for choice in chosen:
        cost, currency = choice.offer.cost, choice.offer.machine.currency
        cells.add_row(
            verbatim(choice.candidate.name),
            str(choice.epochs),
            "unknown" if choice.quality is None else f"{choice.quality:.1f} %",
            _known(choice),
            _place(choice),
            duration(choice.offer.wall.seconds),
            f"{cost.seconds:,.2f} {currency} ({cost.low:,.2f} to {cost.high:,.2f})" if cost else "-",
        )
    return cells


def _known(choice: Affordable) -> str:
    low, high = choice.known or (math.nan, math.nan)
    several = f"{low:g} %" if low == high else f"{low:g} to {high:g} %"
    return "-" if choice.known is None else several


def _values(choice: Affordable, typed: Sequence[str]) -> dict[str, Any]:
    offer = choice.offer
    return {
        "recipe": choice.candidate.recipe,
        "epochs": choice.epochs,
        "top1": choice.quality,
        "known_top1": choice.known and list(choice.known),
        "machine": offer.machine.name,
        "nodes": offer.nodes,
        "spot": offer.spot,
        "minutes": offer.wall.values(60),
        "cost": offer.cost.values() | {"currency": offer.machine.currency} if offer.cost else None,
        "words": _words(choice, typed),
    }
