"""Readers of FFCV files: the same samples as launcher.data.worker_processes, decoded by threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from launcher.config.schema import FFCVLoader, Image, RunConfig
from launcher.data.batch import Loaded
from launcher.data.crops import centre_boxes, random_crops, same_parts
from launcher.data.ffcv.beton import Beton
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.pool import DecodingPool
from launcher.data.images import ChangeImage, Reader
from launcher.data.inspection import check_counts
from launcher.data.sampling import Request, Shard
from launcher.plan.plan import Plan
from launcher.probe import usable_memory

# Part of the free memory that files may take: workers, pinned batches and evaluation need the rest.
_SHARE = 0.8


def choose(os_cache: bool | str, sizes: Iterable[int], free: int) -> tuple[bool, str]:
    """Whether to have the system read the files into memory, and a line with the reason.

    os_cache: true, false, or auto. sizes: the files' in bytes. free: bytes of memory.
    """
    files = sum(sizes)
    facts = f"files {files / 1e9:.2f} GB, free memory {free / 1e9:.2f} GB"
    fits = files <= _SHARE * free
    preload = fits if os_cache == "auto" else bool(os_cache)
    how = "read into memory ahead" if preload else "read image by image"
    return preload, f"dataloader.os_cache={str(os_cache).lower()}: {how} ({facts})"


def open_readers(
    plan: Plan, values: FFCVLoader, shard: Shard, change_image: ChangeImage | None
) -> tuple[Reader, Reader]:
    """Readers of the training and validation images; rank 0 prints how the files are read.

    Raises:
        UserError: a file is missing, not whole, or not what was planned for.
    """
    config = plan.config
    files = FFCVDataset.of(config)
    train, val = files.open("train"), files.open("val")
    small = files.open_small(train)
    check_counts(plan, max(train.classes, val.classes), train.samples, train.path)
    sizes = [file.bytes for file in (train, val, small) if file is not None]
    preload, line = choose(values.os_cache, sizes, usable_memory()[1])
    if shard.rank == 0:
        print(line, flush=True)
    pool = partial(DecodingPool, shard=shard, preload=preload)
    crops = partial(pool, only_crop=values.decode == "crop", scaled=values.dct_scaling, change_image=change_image)
    centres = pool(val, partial(_centres, config.image, plan, val))
    full = crops(train, partial(_crops, config, train))
    if small is None:
        return full, centres
    return FullAndSmall(plan, full, crops(small, partial(_small_crops, config, train, small))), centres


def _crops(config: RunConfig, file: Beton, request: Request) -> np.ndarray:
    sizes = file.sizes(request.indices)
    return random_crops(config.image, *sizes, seed=config.seed, epoch=request.epoch, indices=request.indices)


def _small_crops(config: RunConfig, full: Beton, small: Beton, request: Request) -> np.ndarray:
    boxes = _crops(config, full, request)
    return same_parts(boxes, *full.sizes(request.indices), *small.sizes(request.indices))


def _centres(image: Image, plan: Plan, file: Beton, request: Request) -> np.ndarray:
    return centre_boxes(*file.sizes(request.indices), plan.image_side(image.eval_resize), request.size)


class FullAndSmall(Reader):
    """Steps whose crops are small enough read the same parts of the smaller images beside the full ones."""

    def __init__(self, plan: Plan, full: DecodingPool, small: DecodingPool):
        self.samples, self.classes = full.samples, full.classes
        self._plan, self._full, self._small = plan, full, small

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        # note: nothing is decoded ahead across a change of the file, which happens once a run
        for is_small, some in itertools.groupby(requests, lambda request: self._plan.reads_small(request.step)):
            yield from (self._small if is_small else self._full).batches(some)

    def stalled(self, seconds: float) -> Path | None:
        return self._full.stalled(seconds) or self._small.stalled(seconds)

    def close(self) -> None:
        self._full.close()
        self._small.close()
