"""Training and evaluation batches from FFCV files: the stream of launcher.data.loaders, decoded by threads."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from launcher.config import schema
from launcher.data.available import check_counts
from launcher.data.beton import Beton, open_split
from launcher.data.crops import centre_boxes, random_crops
from launcher.data.decoding_pool import DecodingPool, Request
from launcher.data.device import Loaded, Overlap
from launcher.data.os_cache import choose, free_memory
from launcher.data.pictures import ChangeImage
from launcher.data.sampling import epoch_order, eval_indices, rank_indices
from launcher.data.share import ChangeOrder, Share
from launcher.plan.plan import Plan


def build_ffcv_loaders(
    plan: Plan,
    values: schema.FFCVLoader,
    share: Share,
    change_order: ChangeOrder | None,
    change_image: ChangeImage | None,
) -> tuple[FFCVTrain, FFCVEval]:
    """The loaders of one rank; the first rank says how the files are read.

    Raises:
        UserError: a file is missing, not whole, or not what was planned for.
    """
    config = plan.config
    train, val = open_split(config, "train"), open_split(config, "val")
    check_counts(plan, max(train.classes, val.classes), train.samples, train.path)
    preload, said = choose(values.os_cache, (train.bytes, val.bytes), free_memory())
    if share.rank == 0:
        print(said, flush=True)

    def pool(file: Beton, side: int, *, only_crop: bool, change_image: ChangeImage | None) -> DecodingPool:
        return DecodingPool(
            file,
            side=side,
            workers=share.workers,
            prefetch=share.prefetch,
            preload=preload,
            only_crop=only_crop,
            pinned=share.device.type == "cuda",
            change_image=change_image,
        )

    crops = pool(train, plan.train_size, only_crop=values.decode == "crop", change_image=change_image)
    centres = pool(val, plan.image_side(config.image.eval_size), only_crop=False, change_image=None)
    return (
        FFCVTrain(plan, crops, share, change_order),
        FFCVEval(
            centres,
            share,
            max(1, config.eval_batch_size // share.world_size),
            plan.image_side(config.image.eval_resize),
        ),
    )


class FFCVTrain:
    """Random resized crops of the pictures of an FFCV file, in the epoch's order."""

    def __init__(self, plan: Plan, pool: DecodingPool, share: Share, change_order: ChangeOrder | None):
        self._plan, self._pool, self._share, self._change_order = plan, pool, share, change_order
        self._finish = weakref.finalize(self, pool.close)

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        return Overlap(self._pool.batches(self._requests(epoch, first_step)), self._share.device)

    def close(self) -> None:
        self._finish()

    def _requests(self, epoch: int, first_step: int) -> Iterator[Request]:
        config, pool = self._plan.config, self._pool
        order = epoch_order(config.seed, epoch, pool.file.samples)
        if self._change_order is not None:
            order = self._change_order(order, epoch)
        for step in range(first_step, self._plan.steps_per_epoch):
            indices = rank_indices(order, step, config.batch_size, self._share.rank, self._share.world_size)
            numbers = indices % pool.file.samples
            boxes = random_crops(
                config.image,
                pool.heights[numbers],
                pool.widths[numbers],
                seed=config.seed,
                epoch=epoch,
                indices=indices,
            )
            yield Request(epoch, indices, boxes)


class FFCVEval:
    """This rank's share of the validation pictures, centre crops, each once; the last batch may be smaller."""

    def __init__(self, pool: DecodingPool, share: Share, batch_size: int, resize: int):
        self._pool, self._share, self._resize = pool, share, resize
        self._indices = eval_indices(pool.file.samples, batch_size, share.rank, share.world_size)
        self._finish = weakref.finalize(self, pool.close)

    def __iter__(self) -> Iterator[Loaded]:
        return iter(Overlap(self._pool.batches(map(self._request, self._indices)), self._share.device))

    def close(self) -> None:
        self._finish()

    def _request(self, indices: np.ndarray) -> Request:
        heights, widths = self._pool.heights[indices], self._pool.widths[indices]
        return Request(0, indices, centre_boxes(heights, widths, self._resize, self._pool.side))
