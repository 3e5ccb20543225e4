"""How fast a machine's workers load pictures, from rates of single threads (conf/efficiencies.yaml)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from launcher.config.schema import FFCVLoader, Hardware, SyntheticLoader, TorchvisionLoader
from launcher.plan.plan import Plan

# As data.following takes at most for torchvision's processes of a rank.
_MOST_PROCESSES = 8


def thread_rate(loader: str, side: int, operations: int, values: Mapping[str, Any]) -> float:
    """Pictures a second of one thread of a busy machine, with so many augmenting operations a picture."""
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
    """Pictures a second that all of a machine's workers load; infinite where nothing is loaded."""
    loader = plan.config.dataloader
    if isinstance(loader, SyntheticLoader):
        return math.inf
    kind = loader_kind(loader)
    here = max(1, (machine.cores or 1) // (machine.gpus or 1))
    own = here if isinstance(loader, FFCVLoader) else min(_MOST_PROCESSES, here)
    workers = (own if loader.workers == "auto" else loader.workers) * (machine.gpus or 1)
    policy = plan.config.algorithms.randaugment
    operations = policy.depth if policy and policy.where == "loader" else 0
    return decoding_threads(kind, workers, machine.cores, values) * thread_rate(kind, side, operations, values)
