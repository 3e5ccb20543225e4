"""Batches, their normalization, and their copies to the device, which overlap with the step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from launcher.compute.accelerator import has_streams, interface
from launcher.later import torch
from launcher.rank.signs import STOP

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 16  # bytes, a multiple of every dtype's size

# inputs, labels and indices of a `Batch`
Loaded = tuple["Tensor", "Tensor", np.ndarray]


@dataclass(frozen=True)
class Moment:
    """A position in a run: zero-based epoch and optimizer step; `step` counts over all epochs."""

    seed: int
    epoch: int
    step: int
    total_steps: int
    rank: int = 0

    @property
    def progress(self) -> float:
        """Completed fraction of the run, in [0, 1]."""
        return self.step / self.total_steps


# Of batches of no run, such as those of an evaluation.
START = Moment(0, 0, 0, 1)


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch.

    inputs: of the network, [B, ...]; images [B, C, H, W] are uint8 as loaded, floating point once prepared; those of
        other types than uint8 are float32 as loaded.
    targets: as the task makes them: int64 class indices [B], or floating-point class weights [B, classes].
    indices: int64 sample numbers [B] in the data set (NumPy, on the CPU), the key of per-sample randomness.
    chosen: after samples were dropped, the positions in `indices` of the remaining ones, int64 on the device.
    """

    inputs: Tensor
    targets: Tensor
    indices: np.ndarray
    moment: Moment
    chosen: Tensor | None = None


def one_hot(targets: Tensor, classes: int) -> Tensor:
    """Convert class indices [B] to float32 weights [B, C]; return weights unchanged."""
    if targets.ndim > 1:
        return targets
    # note: F.one_hot reads the values on the host first
    return (targets[:, None] == torch.arange(classes, device=targets.device)).float()


def normalize(
    images: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype, largest: int = 255
) -> Tensor:
    """Normalize images [B, C, H, W] to `dtype`; `mean` and `std` are those of pixels divided by `largest`.

    Keeps the memory format. Computes in float32 and rounds once, in one pass over the images on a GPU.
    """
    shift = constant(tuple(-m / s for m, s in zip(mean, std, strict=True)), torch.float32, images.device)
    scale = constant(tuple(1 / (largest * s) for s in std), torch.float32, images.device)
    if torch.compiler.is_compiling():
        # note: before PyTorch 2.14, compiled code refuses `out` in channels-last order; it fuses the cast itself
        return torch.addcmul(shift, images, scale).to(dtype)
    return torch.addcmul(shift, images, scale, out=torch.empty_like(images, dtype=dtype))


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one value per channel [1, C, 1, 1], cached on the device, so that a step copies nothing."""
    if not torch.compiler.is_compiling():
        return _constant(values, dtype, device)
    # note: compiled code cannot trace the cache; its kernels choose the value
    channels = torch.arange(len(values), device=device).view(1, -1, 1, 1)
    result = torch.zeros_like(channels, dtype=dtype)
    for channel, value in enumerate(values):
        result = torch.where(channels == channel, torch.full_like(result, value), result)
    return result


def forget_constants() -> None:
    """Clear the cached constants; the next use creates them again."""
    _constant.cache_clear()


# note: without a limit, since graphs of captured steps read them
@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    (copied,) = to_device(np.array(values, dtype=np.float32), device=device)
    return copied.to(dtype).view(1, -1, 1, 1)


def to_device(*arrays: np.ndarray, device: torch.device) -> list[Tensor]:
    """Copy arrays to the device in one asynchronous copy from pinned memory."""
    return unpacked(packed(arrays, device), arrays)


def packed(arrays: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Return the bytes of arrays, uint8 on the device, in one asynchronous copy from pinned memory."""
    if not arrays:
        return torch.empty(0, dtype=torch.uint8, device=device)
    starts = _starts(arrays)
    together = np.empty(starts[-1], dtype=np.uint8)
    for array, start in zip(arrays, starts[:-1], strict=True):
        together[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    host = torch.from_numpy(together)
    if has_streams(device):
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def unpacked(copied: Tensor, arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Return the parts of what `packed` returned for arrays of these shapes and dtypes, without a copy."""
    return [
        copied[start : start + array.nbytes].view(torch.from_numpy(np.empty(0, array.dtype)).dtype).view(array.shape)
        for array, start in zip(arrays, _starts(arrays)[:-1], strict=True)
    ]


def packed_size(arrays: Sequence[np.ndarray]) -> int:
    """Return the bytes that arrays take in what `packed` returns, where those of the next arrays start."""
    return _starts(arrays)[-1]


def _starts(arrays: Sequence[np.ndarray]) -> list[int]:
    starts: list[int] = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
    return starts


@lru_cache
def side_stream(device: torch.device) -> Any:
    """Return one stream for all epochs, since the allocator separates memory by stream."""
    return interface(device).Stream(device)


class Overlap:
    """Iterate over loaded batches on the device; on a GPU a side stream copies the next one during the step.

    `waited` is the time in seconds that the loop waited for the loader since the previous batch.
    """

    def __init__(self, batches: Iterable[Loaded], device: torch.device):
        self.waited = 0.0
        self._batches = iter(batches)
        self._device = device
        self._stream = side_stream(device) if has_streams(device) else None

    def __iter__(self) -> Iterator[Loaded]:
        if self._stream is None:
            while (batch := self._next()) is not None:
                inputs, labels, indices = batch
                if self._device.type != "cpu":
                    inputs, labels = inputs.to(self._device), labels.to(self._device)
                yield inputs, labels, indices
                self.waited = 0.0
            return
        ahead = self._copy(self._next())
        while ahead is not None:
            current = interface(self._device).current_stream(self._device)
            current.wait_stream(self._stream)
            inputs, labels, indices = ahead
            for tensor in (inputs, labels):
                tensor.record_stream(current)
            # note: copy before the step: the step waits for the GPU, which would be idle during a later copy
            ahead = self._copy(self._next())
            yield inputs, labels, indices
            self.waited = 0.0

    def _next(self) -> Loaded | None:
        start = time.perf_counter()
        with STOP.waiting():
            batch = next(self._batches, None)
        self.waited += time.perf_counter() - start
        return batch

    def _copy(self, batch: Loaded | None) -> Loaded | None:
        if batch is None or self._stream is None:
            return batch
        inputs, labels, indices = batch
        with interface(self._device).stream(self._stream):
            return inputs.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True), indices
