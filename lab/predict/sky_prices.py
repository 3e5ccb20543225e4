"""Prices of SkyPilot's catalogue, where it is installed, in the place of those of conf/hardware."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.config.schema import Hardware
from launcher.errors import Problem, UserError


def sky_prices(known: Mapping[str, Hardware], home: Path | None = None) -> dict[str, Hardware]:
    """The machines that the catalogue has, with its cheapest prices, dated as its files are.

    Raises:
        UserError: there is no catalogue.
    """
    folder = (home or Path.home()) / ".sky" / "catalogs"
    files = sorted(folder.glob("v*/*/vms.csv"), key=lambda path: int(path.parts[-3][1:]))
    if not files:
        message = f"{folder} holds no catalogue; `pip install 'skypilot[aws]' && sky show-gpus` fetches it"
        raise UserError(Problem(message, "--prices", "sky"))
    found = {}
    for path in files:
        for name, (price, spot) in _cheapest(path).items():
            if name in known:
                source = f"SkyPilot's catalogue, {path.parent.name}/vms.csv"
                date = datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
                found[name] = replace(
                    known[name], price_per_hour=price, spot_per_hour=spot, currency="USD", price_date=date,
                    price_source=source,
                )  # fmt: skip
    return found


def _cheapest(path: Path) -> dict[str, tuple[float, float | None]]:
    """The least price and spot price an hour over all regions, by the machine's name in conf/hardware."""
    prices: dict[str, list[tuple[float | None, float | None]]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            pair = _number(row.get("Price")), _number(row.get("SpotPrice"))
            prices.setdefault(_name(path.parent.name, row.get("InstanceType") or ""), []).append(pair)
    found = {}
    for name, pairs in prices.items():
        price, spot = _least(p for p, _ in pairs), _least(s for _, s in pairs)
        if price is not None:
            found[name] = (price, spot)
    return found


def _name(cloud: str, instance: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", instance.lower()).removeprefix("standard_")
    return plain.replace("gpu_", f"{cloud}_", 1) if plain.startswith("gpu_") else plain


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value), default=None)
