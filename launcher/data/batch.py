"""A batch, what normalises it, and its way to the device: copies that overlap with the step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes, a multiple of every dtype's size

# images, targets and indices of a `Batch`
Loaded = tuple[Tensor, Tensor, np.ndarray]


@dataclass(frozen=True)
class Moment:
    """Where training stands: counters are zero-based, `step` counts optimizer steps of the whole run."""

    seed: int
    epoch: int
    step: int
    total_steps: int
    rank: int = 0

    @property
    def progress(self) -> float:
        """Part of the run that is done, in [0, 1]."""
        return self.step / self.total_steps


@dataclass(frozen=True)
class Batch:
    """One process's share of a global batch.

    images: [B, 3, H, W]; uint8 as loaded, floating point once normalised.
    targets: int64 class indices [B], or floating-point class weights [B, classes].
    indices: int64 sample numbers [B] in the data set (NumPy, on the CPU), the key of per-image randomness.
    chosen: where some images were dropped, which of the `indices` the others are, int64 on the device.
    """

    images: Tensor
    targets: Tensor
    indices: np.ndarray
    moment: Moment
    chosen: Tensor | None = None


def one_hot(targets: Tensor, classes: int) -> Tensor:
    """Class indices [B] as float32 weights [B, C]; weights stay as they are."""
    if targets.ndim > 1:
        return targets
    # note: F.one_hot looks at the values first
    return (targets[:, None] == torch.arange(classes, device=targets.device)).float()


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype) -> Tensor:
    """uint8 images [B, 3, H, W] to `dtype` with mean 0 and deviation 1, for `mean` and `std` of pixels in [0, 1].

    The memory format stays. Computed in float32 and rounded once, in one pass over the images on a GPU.
    """
    shift = constant(tuple(-m / s for m, s in zip(mean, std, strict=True)), torch.float32, images.device)
    scale = constant(tuple(1 / (255 * s) for s in std), torch.float32, images.device)
    return torch.addcmul(shift, images, scale, out=torch.empty_like(images, dtype=dtype))


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One value a channel [1, C, 1, 1]; kept, so that a step copies nothing to the device for it."""
    # note: compiled code takes this for a constant, and would look into the cache itself
    return _constant(values, dtype, device)


def forget_constants() -> None:
    """Drop the constants; the next use makes them again."""
    _constant.cache_clear()


@lru_cache(maxsize=32)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    (copied,) = to_device(np.array(values, dtype=np.float32), device=device)
    return copied.to(dtype).view(1, -1, 1, 1)


def to_device(*arrays: np.ndarray, device: torch.device) -> list[Tensor]:
    """The arrays as tensors on the device: one copy, from pinned memory, for which the host does not wait."""
    if not arrays:
        return []
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
    packed = np.empty(starts[-1], dtype=np.uint8)
    for array, start in zip(arrays, starts[:-1], strict=True):
        packed[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    host = torch.from_numpy(packed)
    if device.type == "cuda":
        host = host.pin_memory()
    copied = host.to(device, non_blocking=True)
    return [
        copied[start : start + array.nbytes].view(torch.from_numpy(np.empty(0, array.dtype)).dtype).view(array.shape)
        for array, start in zip(arrays, starts[:-1], strict=True)
    ]


@lru_cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all epochs: the allocator keeps the memory of each stream apart."""
    return torch.cuda.Stream(device)


class Overlap:
    """Iterates over loaded batches on the device; on a GPU the next one is copied by a side stream while the step runs.

    `waited` is the time in seconds that the loop waited for the loader since the batch before.
    """

    def __init__(self, batches: Iterable[Loaded], device: torch.device):
        self.waited = 0.0
        self._batches = iter(batches)
        self._device = device
        self._stream = _side_stream(device) if device.type == "cuda" else None

    def __iter__(self) -> Iterator[Loaded]:
        if self._stream is None:
            while (batch := self._next()) is not None:
                yield batch
                self.waited = 0.0
            return
        ahead = self._copy(self._next())
        while ahead is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            images, labels, indices = ahead
            for tensor in (images, labels):
                tensor.record_stream(current)
            # note: before the step, which waits for the GPU; after it this copy would find the GPU idle
            ahead = self._copy(self._next())
            yield images, labels, indices
            self.waited = 0.0

    def _next(self) -> Loaded | None:
        start = time.perf_counter()
        batch = next(self._batches, None)
        self.waited += time.perf_counter() - start
        return batch

    def _copy(self, batch: Loaded | None) -> Loaded | None:
        if batch is None or self._stream is None:
            return batch
        images, labels, indices = batch
        with torch.cuda.stream(self._stream):
            return images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True), indices
