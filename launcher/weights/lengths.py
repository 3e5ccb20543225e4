"""The moving average of another length, from the snapshots of a run (Karras et al. 2024)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from launcher.errors import UserError
from launcher.power_averages import coefficients
from launcher.records.run_folder import SNAPSHOT, RunFolder, checkpoint_files
from launcher.training import checkpoint

_VARIANCE = "running_var"


def of_length(state: dict[str, Any], folder: RunFolder, length: float) -> dict[str, Any]:
    """Return a checkpoint whose weights are the average of a length until its step; `average` has length and error.

    Raises UserError if the run keeps no snapshots, or one is damaged, and DiskError if one cannot be read.
    """
    newest = state.get("snapshot")
    if newest is None:
        raise UserError(
            f"{folder.path} keeps no snapshots of averages; start a new run with algorithms.ema.snapshots=0.05dur"
        )
    files = {step: path for step, path in checkpoint_files(folder.checkpoints, SNAPSHOT) if step < newest["step"]}
    steps, lengths = [*files, newest["step"]], newest["lengths"]
    of_averages = [step for step in steps for _ in lengths]
    factors, error = coefficients(of_averages, lengths * len(steps), newest["step"], length)
    weights = _sum(zip(factors.tolist(), _averages([*files.values()], newest), strict=True))
    return {**state, "weights": weights, "average": {"length": length, "error": error}}


def _averages(files: list[Path], newest: Mapping[str, Any]) -> Iterator[Mapping[str, Tensor]]:
    for path in files:
        yield from checkpoint.load(path)["averages"]
    yield from newest["averages"]


def _sum(averages: Iterable[tuple[float, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Return the sum of averages with factors, some of which are negative; counters are those of the last one.

    Variances are at least half of the smallest of the averages.
    """
    total, least, last = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
    for factor, average in averages:
        for name, tensor in average.items():
            if tensor.is_floating_point():
                wide = tensor.double()
                total[name] = total.get(name, 0) + factor * wide
                if name.endswith(_VARIANCE):
                    least[name] = torch.minimum(least.get(name, wide), wide)
            last[name] = tensor
    for name, value in least.items():
        total[name].clamp_(min=value / 2)
    return {name: total[name].to(tensor.dtype) if name in total else tensor for name, tensor in last.items()}
