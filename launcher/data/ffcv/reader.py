"""Read FFCV files: the same samples as launcher.data.worker_processes, decoded by threads."""

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from launcher.compute.accelerator import has_streams
from launcher.compute.host_memory import usable_memory
from launcher.config.fields import in_ratio
from launcher.data.batch import Loaded
from launcher.data.classes import in_classes_of, read_labels
from launcher.data.crops import Fill, centre_boxes, random_crops, whole_boxes
from launcher.data.ffcv.beton import Beton
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.decoder import decode
from launcher.data.images import ChangeImage, ImageReader, Reader, fill_of
from launcher.data.inspection import check_counts
from launcher.data.jpeg import decoder_of
from launcher.data.loaders.base import Opening
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.data.sampling import Request, Shard
from launcher.data.workers import Reading
from launcher.errors import UserError

# Fraction of free memory for preloaded files: workers, pinned batches and evaluation need the rest.
_SHARE = 0.8
_PRELOADED_AT_ONCE = 1 << 23
_IMAGES_A_TASK = 8


def choose(os_cache: bool | str, sizes: Iterable[int], free: int) -> tuple[bool, str]:
    """Decide whether to preload the files into the page cache; return a line with the reason too.

    os_cache: true, false, or auto. sizes: the files' in bytes. free: bytes of memory.
    """
    files = sum(sizes)
    facts = f"files {files / 1e9:.2f} GB, free memory {free / 1e9:.2f} GB"
    fits = files <= _SHARE * free
    preload = fits if os_cache == "auto" else bool(os_cache)
    how = "preloaded into memory" if preload else "read on demand"
    return preload, f"dataloader.os_cache={str(os_cache).lower()}: {how} ({facts})"


def open_readers(opening: Opening) -> tuple[Reader, Reader]:
    """Open readers of the training and validation images; rank 0 prints how they read.

    Raises UserError if a file is missing, damaged, or does not match the plan.
    """
    plan, shard = opening.plan, opening.shard
    config, values = plan.config, plan.config.dataloader
    assert isinstance(values, FFCVLoader)
    files = FFCVDataset.of(config)
    train, val = files.open("train"), files.open("val")
    named = read_labels(config, train.manifest.classes) if train.manifest else None
    if named:
        named = in_classes_of(opening.classes, *named, train.path)
    check_counts(plan, len(named[0]) if named else max(train.classes, val.classes), train.samples, train.path)
    sizes = [file.bytes for file in (train, val)]
    preload, line = choose(values.os_cache, sizes, usable_memory().available)
    if shard.rank == 0:
        print(line, flush=True)
    fill = fill_of(config.dataset, config.image.fit)
    pool = partial(DecodingPool, shard=shard, preload=preload, decoder=values.decoder, named=named, fill=fill)
    short = plan.config.scaled_size(config.image.eval_resize)

    def crops(request: Request) -> np.ndarray:
        indices = request.indices
        sizes = train.sizes(indices)
        return random_crops(config.image, *sizes, seed=config.seed, epoch=request.moment.epoch, indices=indices)

    def centres(request: Request) -> np.ndarray:
        sizes = val.sizes(request.indices)
        if config.image.fit != "crop":
            return whole_boxes(*sizes)
        return centre_boxes(*sizes, short, in_ratio(request.view, plan.loaded_evaluation_size))

    changed = partial(pool, scaled=values.dct_scaling, change_image=opening.change_image, size=plan.full_size)
    return changed(train, crops), pool(val, centres, size=plan.loaded_evaluation_size)


class DecodingPool(ImageReader):
    """Read requested batches of one file, a few ahead, in a shard's number of threads.

    The threads are independent of other libraries', so several readers can run at once, with more threads than cores.
    """

    def __init__(
        self,
        file: Beton,
        boxes: Callable[[Request], np.ndarray],
        *,
        shard: Shard,
        preload: bool,
        size: tuple[int, ...] = (1, 1),
        fill: Fill = None,
        decoder: str = "auto",
        scaled: bool = False,
        change_image: ChangeImage | None = None,
        named: tuple[list[str], np.ndarray] | None = None,
    ):
        """boxes: return int64 [B, 5] for a request's images, in the ratio of `size`.

        fill: of the pixels around crops that keep their ratio. scaled: decode at a smaller scale. named: the names of
        labels, and those of the numbers in the file.
        """
        numbers = file.rows["f1"]
        self.classes, self.labels = (named[0], named[1][numbers]) if named else (None, numbers)
        self._file, self._boxes, self._size = file, boxes, size
        self._shard, self._change_image = shard, change_image
        # note: the transform of FFCV's decoder, so that pixels are FFCV's
        self._decode = partial(decode, decoder=decoder_of(decoder, fast=True), scaled=scaled, fill=fill)
        self._local = threading.local()
        self._reading, self._readers = Reading(shard.workers), itertools.count()
        self._threads = ThreadPoolExecutor(shard.workers, "decode", initializer=self._start_thread)
        self._descriptor = os.open(file.path, os.O_RDONLY)
        self._places, self._sizes = (np.ascontiguousarray(file.pieces[name]) for name in ("place", "size"))
        if preload:
            threading.Thread(target=_read_all, args=[file.path], daemon=True).start()
        else:
            # note: the system's readahead would fetch images that are not needed now
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        """Yield the requested batches in order; closing the iterator cancels pending ones.

        Raises UserError if an image is damaged, or the file was truncated meanwhile.
        """
        requested = iter(requests)
        waiting: list[tuple[Request, Tensor, list[Future[None]]]] = []
        try:
            while True:
                while len(waiting) <= self._shard.prefetch and (request := next(requested, None)) is not None:
                    waiting.append((request, *self._begin(request)))
                if not waiting:
                    return
                request, images, tasks = waiting[0]
                for task in tasks:
                    task.result()
                waiting.pop(0)
                labels = self.labels[request.indices % self.samples]
                yield images.permute(0, 3, 1, 2), torch.from_numpy(labels), request.indices
        finally:
            for _, _, tasks in waiting:
                for task in tasks:
                    task.cancel()

    def measure(self, index: int) -> tuple[int, int, int]:
        """Return width, height and size of a stored image; train prepare has decoded it."""
        row = self._file.rows["f0"][index % self.samples]
        return int(row["width"]), int(row["height"]), self._stored_size(row)

    def stalled(self, seconds: float) -> Path | str | None:
        """Return the file if a read has taken more than `seconds`."""
        return None if self._reading.stalled(seconds) is None else self._file.path

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        os.close(self._descriptor)

    def _start_thread(self) -> None:
        self._local.reader = next(self._readers)

    def _begin(self, request: Request) -> tuple[Tensor, list[Future[None]]]:
        """Start decoding a batch; return uint8 [B, H, W, 3], filled once the tasks are done."""
        count, size = len(request.indices), in_ratio(request.view, self._size)
        images = torch.empty((count, *size, 3), dtype=torch.uint8, pin_memory=has_streams(self._shard.device))
        fill = partial(self._fill, request, self._boxes(request), images.numpy())
        self._check_size()
        parts = (slice(first, first + _IMAGES_A_TASK) for first in range(0, count, _IMAGES_A_TASK))
        return images, [self._threads.submit(fill, part) for part in parts]

    def _check_size(self) -> None:
        if os.fstat(self._descriptor).st_size != self._file.bytes:
            raise UserError(f"{self._file.path} changed during the run; run train prepare again")

    def _fill(self, request: Request, boxes: np.ndarray, images: np.ndarray, part: slice) -> None:
        for place, index in enumerate(request.indices[part].tolist(), part.start):
            number = index % self.samples
            with self._reading.image(number, self._local.reader):
                self._decode_image(number, boxes[place], images[place])
            if self._change_image is not None:
                images[place] = self._change_image(images[place], index, request.moment)

    def _stored_size(self, row: np.void) -> int:
        return int(self._sizes[np.searchsorted(self._places, row["place"])])

    def _decode_image(self, number: int, box: np.ndarray, image: np.ndarray) -> None:
        row = self._file.rows["f0"][number]
        size = self._stored_size(row)
        # note: a memory map would kill the process if the file is truncated meanwhile
        data = os.pread(self._descriptor, size, int(row["place"]))
        try:
            if len(data) != size:
                raise ValueError("truncated")
            self._decode(data, row, box, image)
        except (ValueError, cv2.error):
            self._check_size()
            message = f"image {number} is damaged; remove the file and run train prepare again"
            raise UserError(f"{self._file.path}: {message}") from None


def _read_all(path: Path) -> None:
    """Read a whole file into the page cache: sequential reading is faster than random access."""
    chunk = bytearray(_PRELOADED_AT_ONCE)
    # note: posix_fadvise reads only a part of the file; the decoding threads report read errors
    with suppress(OSError), path.open("rb", buffering=0) as file:
        while file.readinto(chunk):
            pass
