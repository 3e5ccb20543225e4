"""Contenders in turns, and what they reach."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from benchmarks.loader.contenders import PLAIN
from benchmarks.loader.process import Contender
from benchmarks.result import Result
from launcher.config.schema import Image
from launcher.data.crops import random_crops


@dataclass(frozen=True)
class OneCore(Result):
    """Those of one core, and the bytes stored."""

    bytes_a_picture: float


def measure(found: list[Contender], image: Image, sizes: list[int], repeats: int) -> list[OneCore]:
    """Time each contender in turn, `repeats` times over, after one pass; each repeat has crops of its own."""
    rates: dict[tuple[str, int], list[float]] = {(c.name, size): [] for size in sizes for c in found}
    for repeat in range(repeats + 1):
        for size in sizes:
            for contender in found:
                heights, widths = contender.sizes.T
                indices = np.arange(len(heights))
                boxes = random_crops(image, heights, widths, seed=0, epoch=repeat, indices=indices)
                seconds = contender.run(boxes, size)
                if repeat:
                    rates[contender.name, size].append(len(heights) / seconds)
    return [
        OneCore(c.name, size, statistics.median(r), min(r), max(r), c.stored / len(c.sizes))
        for size in sizes
        for c in found
        for r in [rates[c.name, size]]
    ]


def over_schedule(results: list[OneCore], contender: str, steps: dict[int, int]) -> float:
    """Images a second over a schedule that makes so many steps at each side.

    Seconds a picture at a side that was not measured are read between the two that were, linear in the area.
    """
    areas, times = np.array(sorted((r.size**2, 1 / r.median) for r in results if r.contender == contender)).T
    seconds = np.interp([side**2 for side in steps], areas, times)
    return float(sum(steps.values()) / np.dot(seconds, list(steps.values())))


def table(results: list[OneCore], steps: dict[int, int]) -> Table:
    """Images a second at each side and over a schedule, the ratio there to FFCV as published, and what is stored."""
    sides = sorted({r.size for r in results})
    columns = [f"{side} px" for side in sides]
    shown = Table("contender", "kB stored", *columns, "schedule", f"ratio at {sides[-1]} px", "schedule", box=None)
    rates = {(r.contender, r.size): r.median for r in results}
    base = over_schedule(results, PLAIN, steps)
    for name, stored in {r.contender: r.bytes_a_picture for r in results}.items():
        mean = over_schedule(results, name, steps)
        shown.add_row(
            name, f"{stored / 1e3:,.0f}", *(f"{rates[name, side]:,.0f}" for side in sides), f"{mean:,.0f}",
            f"{rates[name, sides[-1]] / rates[PLAIN, sides[-1]]:.2f}", f"{mean / base:.2f}",
        )  # fmt: skip
    return shown
