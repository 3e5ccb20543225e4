"""The published points as curves beside a user's, and the speed-ups that their sources state, computed anew."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from launcher import paths
from launcher.config import recipes
from launcher.study.curves import Cost, Curve, CurvePoint, StudySetting
from launcher.study.datasets import PUBLISHED

_FILE = Path(__file__).with_name("published.yaml")
_TASK = (PUBLISHED, "resnet50")
# Minutes, accuracies and speed-ups as decimal digits: what a source rounds away is half a unit of its last digit.
_HALF = Decimal("0.5")


@dataclass(frozen=True)
class StatedSpeedup:
    """A speed-up as its source states it, beside what the source's own minutes give.

    `low` and `high` bound the computed one, given how the minutes were rounded. `follows`: the two agree within
    rounding. `derived` says that a minute figure was itself computed from the statement.
    """

    claim: str
    source: str
    stated: float
    fast_minutes: float
    slow_minutes: float
    computed: float
    low: float
    high: float
    follows: bool
    derived: str = ""


def published_curves() -> list[Curve]:
    """The points in the headers of the packaged recipes and in published.yaml, one curve a recipe and machine."""
    points: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in _entries():
        points[entry["recipe"], entry["hardware"]].append(entry)
    curves = []
    for (recipe, hardware), entries in points.items():
        source = "; ".join(dict.fromkeys(str(entry["source"]) for entry in entries))
        curves.append(Curve(recipe, recipe, StudySetting(*_TASK, hardware), _curve_points(entries), source))
    return sorted(curves, key=lambda curve: (curve.name, curve.setting.hardware))


def stated_speedups() -> list[StatedSpeedup]:
    """Every stated speed-up with the one computed from the published minutes."""
    return [_recomputed(statement) for statement in _file()["speedups"]]


def _entries() -> Iterable[dict[str, Any]]:
    for recipe in recipes.listing():
        if recipe.path.parent == paths.PACKAGED_RECIPES:
            for result in recipe.about.published:
                if result.minutes is not None:
                    yield {"recipe": recipe.name, **vars(result)}
    yield from _file()["points"]


@cache
def _file() -> dict[str, Any]:
    return dict(yaml.safe_load(_FILE.read_text()))


def _curve_points(entries: Iterable[Mapping[str, Any]]) -> tuple[CurvePoint, ...]:
    found = []
    for entry in sorted(entries, key=lambda entry: float(entry["minutes"])):
        minutes, epochs = float(entry["minutes"]), entry.get("epochs")
        costs: dict[Cost, tuple[float, ...]] = {"time": (minutes,)}
        if (price := _price_per_hour(str(entry["hardware"]))) is not None:
            costs["money"] = (price * minutes / 60,)
        if epochs is not None:
            costs["epochs"] = (float(epochs),)
        found.append(CurvePoint(epochs, (float(entry["top1"]),), costs, note=str(entry.get("derived") or "")))
    return tuple(found)


@cache
def _price_per_hour(hardware: str) -> float | None:
    """The price of the machine in conf/hardware that bears the published name."""
    file = paths.CONF / "hardware" / (re.sub(r"\W", "_", hardware.lower()) + ".yaml")
    price = yaml.safe_load(file.read_text())["price_per_hour"] if file.exists() else None
    return None if price is None else float(price)


def _recomputed(statement: Mapping[str, Any]) -> StatedSpeedup:
    fast, slow = (_minutes(statement[side]) for side in ("fast", "slow"))
    low = (slow[0] - _rounded(slow[0])) / (fast[0] + _rounded(fast[0]))
    high = (slow[0] + _rounded(slow[0])) / (fast[0] - _rounded(fast[0]))
    stated = Decimal(str(statement["stated"]))
    return StatedSpeedup(
        claim=str(statement["claim"]),
        source=str(statement["source"]),
        stated=float(stated),
        fast_minutes=float(fast[0]),
        slow_minutes=float(slow[0]),
        computed=float(slow[0] / fast[0]),
        low=float(low),
        high=float(high),
        follows=low <= stated + _rounded(stated) and stated - _rounded(stated) <= high,
        derived=fast[1] or slow[1],
    )


def _minutes(wanted: Mapping[str, Any]) -> tuple[Decimal, str]:
    found = [e for e in _entries() if all(e[key] == value for key, value in wanted.items())]
    assert len(found) == 1, f"{_FILE.name}: {wanted} names {len(found)} published points"
    return Decimal(str(found[0]["minutes"])).normalize(), str(found[0].get("derived") or "")


def _rounded(number: Decimal) -> Decimal:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    # note: 180.0 is 180 to the minute: zeros before the point are taken as measured digits
    return _HALF * Decimal(1).scaleb(min(0, exponent))
