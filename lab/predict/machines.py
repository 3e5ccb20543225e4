"""Machines of conf/hardware whose GPU is known: the one that a word means, how fast they load, SkyPilot's prices."""

from __future__ import annotations

import csv
import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass

from launcher import paths
from launcher.config.fields import STRICT, Positive
from launcher.config.groups import machines
from launcher.config.keys import nearest
from launcher.config.schema import FFCVLoader, Hardware, SyntheticLoader, TorchvisionLoader
from launcher.config.yaml_file import read_mapping
from launcher.data.workers import MOST_PROCESSES
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan

ALL = "all"


@dataclass(frozen=True, config=STRICT)
class Gpu:
    """The most that a GPU can do: `memory` in GB, its `bandwidth` in GB/s, `matrix_rate` in TFLOP/s of dense bf16.

    `product_rate` is what products of large matrices were measured to reach of it; `link` is to the other GPUs of its
    machine, in GB/s each way.
    """

    memory: Positive
    bandwidth: Positive
    matrix_rate: Positive
    product_rate: Positive
    link: Positive
    source: str


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU that is known, by the name that machines give."""
    return {name: Gpu(**facts) for name, facts in read_mapping(paths.CONF / "gpus.yaml").items()}


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


def gpu_of(machine: Hardware) -> Gpu:
    """What the machine's GPU can do.

    Raises:
        UserError: it has none that is known.
    """
    gpu = gpus().get(machine.gpu or "")
    if gpu is None or machine.gpus is None:
        raise UserError(Problem(f"has no GPU of conf/gpus.yaml: {', '.join(gpus())}", "hardware", machine.name))
    return gpu


def thread_rate(loader: str, side: int, operations: int, values: Mapping[str, Any]) -> float:
    """Images a second of one thread of a busy machine, with so many augmenting operations an image."""
    found = values["loaders"]
    seconds = [1 / rate for rate in found[loader]["rates"]]
    areas = [known**2 for known in found["sides"]]
    slope = (seconds[-1] - seconds[0]) / (areas[-1] - areas[0])
    alone = float(np.interp(side**2, areas, seconds)) + max(0, side**2 - areas[-1]) * slope
    return float(1 / (alone / found["share"] + operations * found["operation"]))


def decoding_threads(loader: str, workers: int, cores: int | None, values: Mapping[str, Any]) -> float:
    """So many workers, in threads that have a core of their own; `cores` as vendors count them, two threads a core."""
    found = values["loaders"]
    own = (cores or workers) / found["threads_a_core"]
    used = min(workers, cores or workers)
    return float(min(used, own) + found[loader]["second_thread"] * max(0.0, used - own))


def loader_kind(loader: TorchvisionLoader | FFCVLoader) -> str:
    """The loader's line of conf/efficiencies.yaml."""
    if isinstance(loader, TorchvisionLoader):
        return "torchvision"
    if loader.files.jpeg_share == 0:
        return "ffcv_pixels"
    scaled = "_scaled" * loader.dct_scaling
    return "ffcv_jpeg_crop" + scaled if loader.decode == "crop" else "ffcv" + scaled


def loading_rate(plan: Plan, machine: Hardware, side: int, values: Mapping[str, Any]) -> float:
    """Images a second that all of a machine's workers load; infinite where nothing is loaded."""
    loader = plan.config.dataloader
    if isinstance(loader, SyntheticLoader):
        return math.inf
    kind = loader_kind(loader)
    here = max(1, (machine.cores or 1) // (machine.gpus or 1))
    own = here if isinstance(loader, FFCVLoader) else min(MOST_PROCESSES, here)
    workers = (own if loader.workers == "auto" else loader.workers) * (machine.gpus or 1)
    of_images = [one for one in plan.config.algorithms.active().values() if one.place("change_image") is not None]
    operations = sum(getattr(one, "depth", 1) for one in of_images)
    return decoding_threads(kind, workers, machine.cores, values) * thread_rate(kind, side, operations, values)


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
        price, spot = (min(filter(None, column), default=None) for column in zip(*pairs, strict=True))
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
