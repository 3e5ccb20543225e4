"""Find the bottleneck of a run from its parts, measured alone and together, and what to change."""

import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import psutil

from launcher.config.algorithms import ALGORITHMS
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.index import Images
from launcher.data.loaders.base import DecodingLoader
from launcher.data.loaders.features import FeatureLoader
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.data.loaders.torchvision import TorchvisionLoader
from launcher.data.pixel_types import PixelType
from launcher.data.sources.find import splits
from launcher.data.sources.reading import read
from launcher.measure.estimate import Measurement, mean_sizes, sizes_by_round
from launcher.plan.plan import Plan

Bound = Literal["data", "transfer", "step"]

# Advice requires a gain of at least this fraction of the time.
_WORTHWHILE = 0.05
# Part of the shorter time that is not hidden, above which loading and training clearly use the same cores.
_SHARED = 0.3
# Images to inspect.
_SAMPLE = 200


@dataclass(frozen=True)
class Diagnosis:
    """What bounds the steps of a run, and what to change.

    `bound` is the longest part of all steps, `bounds` that at each size; `gain` is the fraction of the time that a
    loader without cost would save.
    """

    bound: Bound
    gain: float
    bounds: list[Bound]
    advice: list[str]


def diagnose(plan: Plan, measured: Measurement) -> Diagnosis:
    """Integrate each part over the schedule and compare them."""
    sizes, transfer = mean_sizes(sizes_by_round(plan, measured)), measured.mean_transfer
    load, step, both = (
        sum(size.steps * getattr(size, name) for size in sizes)
        for name in ("load_seconds", "step_seconds", "both_seconds")
    )
    bound = bound_of(load, transfer * plan.total_steps, step)
    gain = max(0.0, 1 - step / both)
    return Diagnosis(
        bound=bound,
        gain=gain,
        bounds=[bound_of(size.load_seconds, transfer, size.step_seconds) for size in sizes],
        advice=advice(plan.config, bound, gain, (both - max(step, load)) / (min(step, load) or 1.0), measured),
    )


def bound_of(load: float, transfer: float, step: float) -> Bound:
    """Return the longest part."""
    parts: dict[Bound, float] = {"step": step, "data": load, "transfer": transfer}
    return max(parts, key=lambda part: parts[part])


def advice(config: RunConfig, bound: Bound, gain: float, shared: float, measured: Measurement) -> list[str]:
    """List what to change, the most promising first."""
    lines: list[str] = []
    if isinstance(config.dataloader, FeatureLoader):
        return lines
    if bound == "step":
        lines += _cheaper_steps(config, measured)
    if bound != "transfer" and gain >= _WORTHWHILE:
        lines += _faster_loading(config, measured)
        if shared > _SHARED:
            lines.append("loading and training share the same cores: cheaper loading also shortens the step")
    if bound == "transfer":
        lines.append("copies to the GPU are slowest: check its PCIe width (nvidia-smi -q) or lower image.train_size")
    return lines


def _cheaper_steps(config: RunConfig, measured: Measurement) -> Iterator[str]:
    on_gpu = measured.device != "cpu"
    if on_gpu and config.precision == "fp32":
        yield "precision=auto: mixed precision instead of fp32"
    yield from _of_algorithms(config, "step")
    if on_gpu and config.deterministic:
        yield "deterministic=false: the fastest kernels; sums may differ in the last bit"


def _faster_loading(config: RunConfig, measured: Measurement) -> Iterator[str]:
    loader = config.dataloader
    most = max(1, measured.cores // measured.world_size)
    if isinstance(loader, DecodingLoader) and 0 <= measured.workers < most:
        yield f"dataloader.workers={most}: {measured.workers} of {count_of(most, 'core')} per process load images"
    yield from _of_algorithms(config, "data")
    if isinstance(loader, TorchvisionLoader):
        yield "dataloader=ffcv: decodes in threads of one process, from files that train prepare writes"
        if not config.dataset.is_built_in:
            yield from image_advice(config, splits(config.dataset, config.seed, config.task.labelled)[0])
    jpegs = not isinstance(loader, FFCVLoader) or loader.files.jpeg_share > 0
    if jpegs and isinstance(loader, DecodingLoader) and not loader.dct_scaling:
        yield "dataloader.dct_scaling=true: decodes JPEGs at a reduced scale where crops are small, to other pixels"


def _of_algorithms(config: RunConfig, bound: Literal["data", "step"]) -> Iterator[str]:
    active = config.algorithms
    for name, kind in ALGORITHMS.declarations().items():
        fits = not kind.acts_on or {*config.task.needs} <= {*kind.acts_on}
        if fits and (line := kind.advice(active.get(name), bound)):
            yield line


def image_advice(config: RunConfig, folder: Images) -> Iterator[str]:
    """Compare up to 200 evenly spaced images with the resolution of the run and the memory; skip unreadable ones."""
    numbers = np.linspace(0, len(folder) - 1, min(_SAMPLE, len(folder))).round().astype(int)
    file_sizes, shorter = [], []
    for number in numbers:
        with suppress(UnreadableImage):
            data = read(folder.piece(number))
            shorter.append(min(PixelType.of(config.dataset).edges(data)))
            file_sizes.append(len(data))
    if not file_sizes:
        return
    median, used = statistics.median(shorter), config.image.eval_resize
    if median > 1.5 * used * config.dataset.native_size / config.image.reference:
        prepare = "train prepare writes smaller files"
        yield f"smaller images: their shorter edge is {median:.0f} px (median), but the run uses {used} px; {prepare}"
    total, memory = statistics.fmean(file_sizes) * len(folder), psutil.virtual_memory().total
    if total > 0.8 * memory:
        needed, available = (f"{number / 2**30:,.0f} GiB" for number in (total, memory))
        yield f"memory: the images ({needed}) exceed it ({available}), so each epoch reads from disk"
