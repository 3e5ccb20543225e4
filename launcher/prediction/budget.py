"""What a budget buys: of each recipe the length that it pays for on a machine, and its quality, if that is known."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from launcher.errors import Problem, UserError
from launcher.measure.estimate import Span
from launcher.prediction.lengths import Length, needed
from launcher.prediction.offers import Offer
from launcher.results.curve_math import pareto_front, quality_at
from launcher.results.curves import Curve

_FORM = re.compile(r"(?P<sign>\$)?(?P<amount>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Budget:
    """An amount of a currency, or of seconds if that is None."""

    amount: float
    currency: str | None

    @classmethod
    def of(cls, text: str, key: str) -> "Budget":
        """Parse 25usd or 2h, the value of a key.

        Raises UserError if it is neither an amount of money nor a time.
        """
        if (match := _FORM.fullmatch(text.strip())) and float(match["amount"]) > 0:
            unit, amount = match["unit"], float(match["amount"])
            if not match["sign"] and unit.lower() in _SECONDS:
                return cls(amount * _SECONDS[unit.lower()], None)
            if (match["sign"] and unit.lower() in ("", "usd")) or (not match["sign"] and len(unit) == 3):
                return cls(amount, unit.upper() or "USD")
        raise UserError(Problem("must be money such as 25usd, or a time such as 2h or 90min", key, text))


def spent(paid: Budget, offer: Offer) -> float:
    """Return what a run takes of a budget; infinite without a price in its currency."""
    if paid.currency is None:
        return offer.wall.seconds
    return offer.cost.seconds if offer.cost and offer.machine.currency == paid.currency else math.inf


@dataclass(frozen=True)
class Candidate:
    """A recipe with its shortest and longest length, and all those between them with a known quality, both rising.

    words: what it has besides. label: its name beside candidates of the same recipe.
    """

    recipe: str
    lengths: Sequence[Length]
    words: tuple[str, ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.recipe


@dataclass(frozen=True)
class Affordable:
    """A candidate's length on a machine, with the quality to expect and those of the known lengths around it, if any.

    words: what it needs there besides, such as a smaller `device_batch_size`.
    """

    candidate: Candidate
    epochs: int
    quality: float | None
    known: tuple[float, float] | None
    offer: Offer
    words: tuple[str, ...] = ()


def around(lengths: Sequence[Length], quality: float | None) -> Sequence[Length]:
    """Return the lengths that `affordable` needs for a quality, all without one; none if none reaches it."""
    if quality is None or lengths[0].quality is None:
        return lengths
    reaching = next((number for number, one in enumerate(lengths) if (one.quality or 0.0) >= quality), None)
    return [] if reaching is None else lengths[max(0, reaching - 1) : reaching + 1]


def worthwhile(curves: Sequence[Curve]) -> list[str]:
    """Return the recipes with a point that no other beats in time and quality in its setting, or with own runs."""
    found = [curve.recipe for curve in curves if curve.source is None]
    for setting in {curve.setting for curve in curves}:
        points = [
            (point.cost("time") or math.inf, point.quality, curve.recipe)
            for curve in curves
            if curve.setting == setting
            for point in curve.on("time")
        ]
        found += [points[index][2] for index in pareto_front([point[:2] for point in points])]
    return sorted(set(found))


def affordable(candidate: Candidate, offers: Sequence[Offer], paid: Budget, quality: float | None) -> Affordable | None:
    """Return the longest run within a budget, or the one of a quality; None if the budget does not pay for it.

    offers: of one machine at one price, for each of the lengths; what is between them is interpolated, the quality in
    the logarithm of the epochs.
    """
    epochs = [one.epochs for one in candidate.lengths]
    qualities = [one.quality for one in candidate.lengths if one.quality is not None]
    least: float = epochs[0]
    if quality is not None:
        least = max(least, needed(quality, candidate.lengths)) if qualities else math.inf
    takes = [spent(paid, offer) for offer in offers]
    if offers[0].problem or not math.isfinite(least + takes[0]):
        return None
    most = int(np.interp(paid.amount, takes, epochs, left=0))
    chosen = most if quality is None else math.ceil(least)
    if not epochs[0] <= chosen <= most:
        return None
    offer = _between(epochs, offers, chosen)
    if not qualities:
        return Affordable(candidate, chosen, None, None, offer)
    place = int(np.searchsorted(epochs, chosen))
    known = (qualities[place],) * 2 if epochs[place] == chosen else (qualities[place - 1], qualities[place])
    return Affordable(candidate, chosen, quality_at(epochs, qualities, chosen), known, offer)


def _between(epochs: Sequence[int], offers: Sequence[Offer], chosen: int) -> Offer:
    def span(spans: Sequence[Span]) -> Span:
        parts = zip(*((one.seconds, one.low, one.high) for one in spans), strict=True)
        return Span(*(float(np.interp(chosen, epochs, part)) for part in parts))

    costs = [offer.cost for offer in offers if offer.cost]
    return replace(offers[0], wall=span([offer.wall for offer in offers]), cost=span(costs) if costs else None)


def best(choices: Iterable[Affordable], quality: float | None, count: int = 3) -> list[Affordable]:
    """Return the best choices of different candidates: the cheapest with a quality, or else those of the highest.

    Without known qualities, they are the longest of each candidate, in the order of the first choices.
    """

    def order(choice: Affordable) -> tuple[float, float, float]:
        money = choice.offer.cost.seconds if choice.offer.cost else math.inf
        worth = -choice.epochs if choice.quality is None else -round(choice.quality, 1)
        return (0.0 if quality is not None else worth, money, choice.offer.wall.seconds)

    choices = [*choices]
    chosen: dict[str, Affordable] = {}
    for choice in sorted(choices, key=order):
        chosen.setdefault(choice.candidate.name, choice)
    if all(choice.quality is None for choice in choices):
        return [chosen[name] for name in dict.fromkeys(choice.candidate.name for choice in choices)][:count]
    return [*chosen.values()][:count]
