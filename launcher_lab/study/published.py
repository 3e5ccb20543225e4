"""The published points as curves, and the speed-ups that their sources state, recomputed."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config import recipes
from launcher.config.groups import machines
from launcher.config.yaml_file import read_mapping
from launcher.counts import count_of
from launcher_lab.study.curves import Cost, Curve, CurvePoint, StudySetting, named_by_metric
from launcher_lab.study.scales import TOP1, QualityScale, scale_named

_FILE = Path(__file__).with_name("published.yaml")
_DATASET, _MODEL = "imagenet", "resnet50"
# Sources print decimal digits: the rounding error is at most half a unit of the last digit.
_HALF = Decimal("0.5")
# Units of a stated speed-up, besides the minutes of a published point.
_UNITS = {"minutes": "minutes", "usd": "USD", "epochs": "epochs", "images_per_second": "images/s"}


@dataclass(frozen=True)
class StatedSpeedup:
    """A speed-up as stated by its source, and as computed from the printed numbers.

    `stated_to` is the end of a range. `fast` and `slow` are in `unit`; without them nothing is computed. `low` and
    `high` bound the computed speed-up, given the rounding of the numbers. `follows`: the two agree within rounding.
    `derived` is the derivation of a number that was computed from the statement itself.
    """

    claim: str
    source: str
    stated: float
    stated_to: float | None = None
    unit: str = ""
    fast: float | None = None
    slow: float | None = None
    computed: float | None = None
    low: float | None = None
    high: float | None = None
    follows: bool | None = None
    derived: str = ""

    @property
    def text(self) -> str:
        """Return the stated speed-up, or range."""
        return f"{self.stated:g}x" + (f" to {self.stated_to:g}x" if self.stated_to is not None else "")

    @property
    def verdict(self) -> str:
        """Return whether the printed numbers support the statement."""
        if self.derived:
            return f"by construction: {self.derived}"
        verdicts = {None: "no numbers printed", True: "matches", False: "contradicts the printed numbers"}
        return verdicts[self.follows]


def published_curves(metrics: Collection[QualityScale] = (TOP1,)) -> list[Curve]:
    """Return the points of the packaged recipes and of published.yaml, one curve per recipe and machine."""
    points: dict[tuple[str, StudySetting, QualityScale], list[dict[str, Any]]] = defaultdict(list)
    for entry in _entries():
        metric = scale_named("perplexity" if entry.get("perplexity") else "top1")
        dataset = named_by_metric(entry.get("dataset", _DATASET), metric)
        setting = StudySetting(dataset, entry.get("model", _MODEL), entry["hardware"])
        if metric in metrics:
            points[entry["recipe"], setting, metric].append(entry)
    curves = []
    for (recipe, setting, metric), entries in points.items():
        source = "; ".join(dict.fromkeys(str(entry["source"]) for entry in entries))
        curves.append(Curve(recipe, recipe, setting, _curve_points(entries, metric), source, metric))
    return sorted(curves, key=lambda curve: (curve.name, curve.setting.model, curve.setting.hardware))


def stated_speedups() -> list[StatedSpeedup]:
    """Return every stated speed-up, with the one computed from the printed numbers if the source has any."""
    return [_recomputed(statement) for statement in published()["speedups"]]


def _entries() -> Iterable[dict[str, Any]]:
    for recipe in recipes.listing():
        if recipe.path.parent == paths.PACKAGED_RECIPES:
            for result in recipe.about.published:
                if result.minutes is not None:
                    options = {key: recipe.options[key] for key in ("dataset", "model")}
                    yield {"recipe": recipe.name, **options, **vars(result)}
    yield from published()["points"]


@cache
def published() -> dict[str, Any]:
    """Read published.yaml."""
    return read_mapping(_FILE)


def _curve_points(entries: Iterable[Mapping[str, Any]], metric: QualityScale) -> tuple[CurvePoint, ...]:
    points = []
    for entry in sorted(entries, key=lambda entry: float(entry["minutes"])):
        minutes, epochs = float(entry["minutes"]), entry.get("epochs")
        costs: dict[Cost, tuple[float, ...]] = {"time": (minutes,)}
        machine = machines().get(re.sub(r"\W", "_", str(entry["hardware"]).lower()))
        if machine and machine.price_per_hour is not None:
            costs["money"] = (machine.price_per_hour * minutes / 60,)
        if epochs is not None:
            costs["epochs"] = (float(epochs),)
        quality = metric.sign * float(entry.get("perplexity") or entry["top1"])
        points.append(CurvePoint(epochs, (quality,), costs, note=str(entry.get("derived") or "")))
    return tuple(points)


def _recomputed(statement: Mapping[str, Any]) -> StatedSpeedup:
    stated_range = statement["stated"] if isinstance(statement["stated"], list) else [statement["stated"], None]
    known = StatedSpeedup(str(statement["claim"]), str(statement["source"]), *stated_range)
    if "fast" not in statement:
        return known
    (unit, fast, derived), (_, slow, also) = (_number(statement[term]) for term in ("fast", "slow"))
    less, more = (fast, slow) if unit != "images_per_second" else (slow, fast)
    # note: epochs are exact, the others are rounded
    off_more, off_less = (Decimal(0), Decimal(0)) if unit == "epochs" else (_rounded(more), _rounded(less))
    low, high = (more - off_more) / (less + off_less), (more + off_more) / (less - off_less)
    stated = Decimal(str(known.stated))
    follows = low <= stated + _rounded(stated) and stated - _rounded(stated) <= high
    return replace(
        known, unit=_UNITS[unit], fast=float(fast), slow=float(slow), computed=float(more / less), low=float(low),
        high=float(high), follows=follows, derived=derived or also,
    )  # fmt: skip


def _number(term: Mapping[str, Any]) -> tuple[str, Decimal, str]:
    """Return the unit, number and derivation of one term: a printed number, or the minutes of a published point."""
    for unit in _UNITS:
        if unit in term:
            return unit, Decimal(str(term[unit])).normalize(), ""
    points = [e for e in _entries() if all(e.get(key) == value for key, value in term.items())]
    assert len(points) == 1, f"{_FILE.name}: {term} matches {count_of(len(points), 'published point')}"
    return "minutes", Decimal(str(points[0]["minutes"])).normalize(), str(points[0].get("derived") or "")


def _rounded(number: Decimal) -> Decimal:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    # note: 180.0 is exact to the minute, since zeros before the point are significant
    return _HALF * Decimal(1).scaleb(min(0, exponent))
