"""Training and evaluation batches from FFCV files: the same samples as launcher.data.loaders, decoded by threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from operator import itemgetter

import numpy as np

from launcher.config import schema
from launcher.data.batch import Loaded, Overlap
from launcher.data.crops import centre_boxes, random_crops, same_parts
from launcher.data.ffcv.beton import Beton
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.pool import DecodingPool, Request
from launcher.data.images import ChangeImage
from launcher.data.inspection import check_counts
from launcher.data.loaders import EvaluationLoader, TrainLoader
from launcher.data.sampling import ChangeOrder, Shard, eval_indices, train_batches
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


def build_ffcv_loaders(
    plan: Plan,
    values: schema.FFCVLoader,
    shard: Shard,
    change_order: ChangeOrder | None,
    change_image: ChangeImage | None,
) -> tuple[FFCVTrain, FFCVEval]:
    """The loaders of one rank; rank 0 prints how the files are read.

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

    def crops(file: Beton) -> DecodingPool:
        return DecodingPool(
            file,
            shard,
            preload=preload,
            only_crop=values.decode == "crop",
            scaled=values.dct_scaling,
            change_image=change_image,
        )

    full, reduced = crops(train), crops(small) if small else None
    centres = DecodingPool(val, shard, preload=preload)
    return (
        FFCVTrain(plan, full, reduced, shard, change_order),
        FFCVEval(plan, centres, shard),
    )


class FFCVTrain(TrainLoader):
    """Random resized crops of the images of an FFCV file, in the epoch's order.

    Steps whose crops are small enough read the same parts of the smaller images beside them.
    """

    def __init__(
        self,
        plan: Plan,
        full: DecodingPool,
        small: DecodingPool | None,
        shard: Shard,
        change_order: ChangeOrder | None,
    ):
        self._plan, self._full, self._small, self._shard, self._change_order = plan, full, small, shard, change_order
        pools = [full, small] if small else [full]
        super().__init__(
            lambda seconds: next(filter(None, (pool.stalled(seconds) for pool in pools)), None),
            partial(_close, pools),
        )

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        return Overlap(self._batches(epoch, first_step), self._shard.device)

    def _batches(self, epoch: int, first_step: int) -> Iterator[Loaded]:
        # note: nothing is decoded ahead across a change of the file, which happens once a run
        for pool, requests in itertools.groupby(self._requests(epoch, first_step), itemgetter(0)):
            yield from pool.batches(request for _, request in requests)

    def _requests(self, epoch: int, first_step: int) -> Iterator[tuple[DecodingPool, Request]]:
        plan, full = self._plan, self._full
        steps = train_batches(plan, self._shard, full.file.samples, epoch, first_step, self._change_order)
        for step, indices in steps:
            numbers = indices % full.file.samples
            sizes = full.heights[numbers], full.widths[numbers]
            boxes = random_crops(plan.config.image, *sizes, seed=plan.config.seed, epoch=epoch, indices=indices)
            small = self._small if plan.reads_small(step) else None
            if small is not None:
                boxes = same_parts(boxes, *sizes, small.heights[numbers], small.widths[numbers])
            yield small or full, Request(epoch, indices, boxes, plan.loaded_size(step))


def _close(pools: list[DecodingPool]) -> None:
    for pool in pools:
        pool.close()


class FFCVEval(EvaluationLoader):
    """This rank's part of the validation images, centre crops, each once; the last batch may be smaller."""

    def __init__(self, plan: Plan, pool: DecodingPool, shard: Shard):
        self._plan, self._pool, self._shard = plan, pool, shard
        self.classes = pool.file.manifest.classes if pool.file.manifest else None
        self._indices = eval_indices(pool.file.samples, plan.rank_eval_batch, shard.rank, shard.world_size)
        super().__init__(pool.stalled, pool.close)

    def __iter__(self) -> Iterator[Loaded]:
        return iter(Overlap(self._pool.batches(map(self._request, self._indices)), self._shard.device))

    def _request(self, indices: np.ndarray) -> Request:
        heights, widths = self._pool.heights[indices], self._pool.widths[indices]
        image = self._plan.config.image
        resize, size = self._plan.image_side(image.eval_resize), self._plan.image_side(image.eval_size)
        return Request(0, indices, centre_boxes(heights, widths, resize, size), size)
