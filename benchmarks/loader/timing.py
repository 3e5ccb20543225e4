"""Time the contenders in alternation."""

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
    """The throughput of one core, and the stored bytes per image."""

    bytes_per_image: float


def measure(contenders: list[Contender], image: Image, sizes: list[int], repeats: int) -> list[OneCore]:
    """Time each contender in alternation, `repeats` times after one pass; each repeat has different crops."""
    throughput: dict[tuple[str, int], list[float]] = {(c.name, size): [] for size in sizes for c in contenders}
    for repeat in range(repeats + 1):
        for size in sizes:
            for contender in contenders:
                heights, widths = contender.sizes.T
                indices = np.arange(len(heights))
                boxes = random_crops(image, heights, widths, seed=0, epoch=repeat, indices=indices)
                seconds = contender.run(boxes, size)
                if repeat:
                    throughput[contender.name, size].append(len(heights) / seconds)
    return [
        OneCore(c.name, size, statistics.median(r), min(r), max(r), c.stored / len(c.sizes))
        for size in sizes
        for c in contenders
        for r in [throughput[c.name, size]]
    ]


def over_schedule(results: list[OneCore], contender: str, steps: dict[int, int]) -> float:
    """Return the images/s over a schedule, given its number of steps at each image size.

    The time per image at other sizes is interpolated linearly in the area.
    """
    areas, times = np.array(sorted((r.size**2, 1 / r.median) for r in results if r.contender == contender)).T
    seconds = np.interp([size**2 for size in steps], areas, times)
    return float(sum(steps.values()) / np.dot(seconds, list(steps.values())))


def table(results: list[OneCore], steps: dict[int, int]) -> Table:
    """Return images/s at each size and over a schedule, ratios to plain FFCV, and the stored kilobytes per image.

    Without FFCV's package the ratios are to the first contender.
    """
    sizes = sorted({r.size for r in results})
    columns = [f"{size} px" for size in sizes]
    shown = Table("contender", "kB stored", *columns, "schedule", f"ratio at {sizes[-1]} px", "schedule", box=None)
    throughput = {(r.contender, r.size): r.median for r in results}
    first = PLAIN if (PLAIN, sizes[-1]) in throughput else results[0].contender
    base = over_schedule(results, first, steps)
    for name, stored in {r.contender: r.bytes_per_image for r in results}.items():
        mean = over_schedule(results, name, steps)
        shown.add_row(
            name, f"{stored / 1e3:,.0f}", *(f"{throughput[name, size]:,.0f}" for size in sizes), f"{mean:,.0f}",
            f"{throughput[name, sizes[-1]] / throughput[first, sizes[-1]]:.2f}", f"{mean / base:.2f}",
        )  # fmt: skip
    return shown
