"""Machines of conf/hardware whose GPU is known: the one that a word means, and their prices in SkyPilot's catalogue."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.config.hardware import gpus, machines
from launcher.config.keys import nearest
from launcher.config.schema import Hardware
from launcher.errors import Problem, UserError

ALL = "all"


def machine_named(word: str, known: Mapping[str, Hardware] | None = None) -> str:
    """The machine of conf/hardware that a word stands for: its own name, or 8xH100 for the cheapest that has these.

    Raises:
        UserError: there is none; with the nearest.
    """
    known = known or rented()
    if word in known:
        return word
    if word in machines():
        message = "its GPU is not known here; `train estimate` measures it, or choose one of `train ls hardware`"
        raise UserError(Problem(message, "--on", word))
    count, _, gpu = word.lower().partition("x")
    able = [one for one in known.values() if str(one.gpus) == count.strip() and _plain(gpu) in _names(str(one.gpu))]
    if able:
        return min(able, key=lambda one: (one.price_per_hour is None, one.price_per_hour)).name
    counts = sorted({f"{one.gpus}x{str(one.gpu).split()[0]}" for one in known.values()})
    choices = {name.lower(): name for name in (*known, *counts)}
    near = nearest(word, choices)
    hint = f"did you mean {choices[near]}? " if near else ""
    message = f"no such machine; {hint}`train ls hardware` lists them, or {', '.join(counts)}"
    raise UserError(Problem(message, "--on", word))


def rented() -> dict[str, Hardware]:
    """The machines whose GPU is known."""
    return {name: machine for name, machine in machines().items() if machine.gpu in gpus()}


def _names(gpu: str) -> set[str]:
    """What a GPU may be called; the beginning of a name is not enough, as A10 and L4 are GPUs too."""
    return {_plain(gpu), _plain(gpu).removesuffix("gb"), _plain(gpu.split()[0])}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


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
