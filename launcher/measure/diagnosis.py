"""What bounds a run, from its parts measured alone and together, and what to change."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from launcher.config.schema import FFCVLoader, RunConfig, TorchvisionLoader
from launcher.data.decode import UnreadableImage, size
from launcher.data.folder import Folder
from launcher.measure.estimate import SizeCost, mean_sizes
from launcher.measure.measurement import Measurement
from launcher.plan.plan import Plan

Bound = Literal["data", "transfer", "step"]

# A part of the time below which a change is not worth a word.
_WORTHWHILE = 0.05
# Competition above which loading and training clearly use the same cores.
_SHARED = 0.3
# Pictures looked at.
_SAMPLE = 200


@dataclass(frozen=True)
class PictureFacts:
    """Bytes of all pictures, as far as a sample tells, and the median of their short sides in pixels."""

    total_bytes: int
    short_side: int


@dataclass(frozen=True)
class Surroundings:
    """What the advice depends on beside the config; no `pictures` where they are no files of the user's."""

    measured: Measurement
    memory_bytes: int
    pillow_simd: bool
    pictures: PictureFacts | None


@dataclass(frozen=True)
class Diagnosis:
    """Seconds of the run's steps: loading alone, copies alone, steps alone, and as they run together.

    `bound` is the longest of the parts; `gain` the part of the time that a loader without any cost would save.
    """

    bound: Bound
    load_seconds: float
    transfer_seconds: float
    step_seconds: float
    both_seconds: float
    gain: float
    sizes: list[SizeCost]
    bounds: list[Bound]
    advice: list[str]


def diagnose(plan: Plan, around: Surroundings) -> Diagnosis:
    """Integrate each part over the schedule and compare."""
    sizes, transfer = mean_sizes(plan, around.measured), around.measured.mean_transfer
    load, step, both = (
        sum(size.steps * getattr(size, name) for size in sizes)
        for name in ("load_seconds", "step_seconds", "both_seconds")
    )
    bound = bound_of(load, transfer * plan.total_steps, step)
    gain = max(0.0, 1 - step / both)
    shared = (both - max(load, step)) / min(load, step) if min(load, step) > 0 else 0.0
    return Diagnosis(
        bound=bound,
        load_seconds=load,
        transfer_seconds=transfer * plan.total_steps,
        step_seconds=step,
        both_seconds=both,
        gain=gain,
        sizes=sizes,
        bounds=[bound_of(size.load_seconds, transfer, size.step_seconds) for size in sizes],
        advice=advice(plan.config, bound, gain, shared, around),
    )


def bound_of(load: float, transfer: float, step: float) -> Bound:
    """The longest part."""
    parts: dict[Bound, float] = {"step": step, "data": load, "transfer": transfer}
    return max(parts, key=lambda part: parts[part])


def advice(config: RunConfig, bound: Bound, gain: float, shared: float, around: Surroundings) -> list[str]:
    """What to change, the most promising first."""
    found = [line for rule in _STEP for line in rule(config, around)] if bound == "step" else []
    if bound != "transfer" and gain >= _WORTHWHILE:
        found += [line for rule in _LOADING for line in rule(config, around)]
        if shared > _SHARED:
            found.append(
                "loading and training use the same cores: whatever makes loading cheaper shortens the step too"
            )
    if bound == "transfer":
        found.append(
            "copies to the GPU take longest: look at its PCIe width (nvidia-smi -q); image.train_size is bytes"
        )
    return found


def picture_facts(folder: Folder) -> PictureFacts:
    """Look at up to 200 pictures at equal distances; those that cannot be read are left out."""
    numbers = np.linspace(0, len(folder.files) - 1, min(_SAMPLE, len(folder.files))).round().astype(int)
    sizes, sides = [], []
    for number in numbers:
        path = folder.root / folder.files[number]
        try:
            sides.append(min(size(path)))
            sizes.append(path.stat().st_size)
        except UnreadableImage:
            continue
    if not sizes:
        return PictureFacts(0, 0)
    return PictureFacts(round(statistics.fmean(sizes) * len(folder.files)), round(statistics.median(sides)))


def _workers(config: RunConfig, around: Surroundings) -> Iterator[str]:
    measured = around.measured
    most = max(1, measured.cores // measured.world_size)
    if 0 <= measured.workers < most:
        yield f"dataloader.workers={most}: {measured.workers} of the {most} cores a process load pictures"


def _cache(config: RunConfig, around: Surroundings) -> Iterator[str]:
    pictures = around.pictures
    if pictures is not None and pictures.total_bytes > 0.8 * around.memory_bytes:
        size, memory = (f"{number / 2**30:,.0f} GiB" for number in (pictures.total_bytes, around.memory_bytes))
        yield f"cache: the pictures ({size}) do not fit into memory ({memory}), so each epoch reads the disk"


def _loader(config: RunConfig, around: Surroundings) -> Iterator[str]:
    if isinstance(config.dataloader, TorchvisionLoader):
        yield "dataloader=ffcv: decodes in threads that share one memory, from files made by train prepare"
        if not around.pillow_simd:
            yield "Pillow-SIMD in place of Pillow resizes faster (scripts/setup.sh builds it)"


def _algorithms(bound: Literal["data", "step"], config: RunConfig, around: Surroundings) -> Iterator[str]:
    active = config.algorithms.active()
    for name, kind in config.algorithms.declarations().items():
        if line := kind.advice(active.get(name), bound):
            yield line


def _crops(config: RunConfig, around: Surroundings) -> Iterator[str]:
    loader = config.dataloader
    if isinstance(loader, FFCVLoader) and not loader.dct_scaling and loader.files.jpeg_share > 0:
        yield "dataloader.dct_scaling=true: decodes JPEGs at a part of their size where crops are small"


def _files(config: RunConfig, around: Surroundings) -> Iterator[str]:
    pictures, wanted = around.pictures, config.image.eval_resize
    if (
        pictures is not None
        and pictures.short_side > 1.5 * wanted * config.dataset.native_size / config.image.reference
    ):
        yield (
            f"smaller files: the pictures' short side is {pictures.short_side} px (median), the run looks at {wanted}; "
            f"train prepare stores them smaller"
        )


def _precision(config: RunConfig, around: Surroundings) -> Iterator[str]:
    if around.measured.device != "cpu" and config.precision == "fp32":
        yield "precision=auto: mixed precision in place of fp32"


def _deterministic(config: RunConfig, around: Surroundings) -> Iterator[str]:
    if around.measured.device != "cpu" and config.deterministic:
        yield "deterministic=false: the fastest kernels, whose sums may differ in the last bit"


Rule = Callable[[RunConfig, Surroundings], Iterator[str]]
_LOADING: tuple[Rule, ...] = (_workers, partial(_algorithms, "data"), _loader, _crops, _files, _cache)
_STEP: tuple[Rule, ...] = (_precision, partial(_algorithms, "step"), _deterministic)
