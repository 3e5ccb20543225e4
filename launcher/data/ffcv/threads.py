"""Make batches of images in threads, for readers of FFCV files."""

import itertools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from launcher.compute.accelerator import has_streams
from launcher.config.fields import in_ratio
from launcher.data.batch import Loaded
from launcher.data.crops import Fill
from launcher.data.ffcv.decoder import decode
from launcher.data.images import ChangeImage, ImageReader
from launcher.data.jpeg import decoder_of
from launcher.data.sampling import Request, Shard
from launcher.data.workers import Reading

_IMAGES_A_TASK = 8


class Decoding(NamedTuple):
    """How images are decoded: in the ratio of a size, by which JPEG decoder, at a smaller scale, and changed.

    fill: of the pixels around crops that keep their ratio.
    """

    size: tuple[int, ...]
    fill: Fill
    decoder: str
    scaled: bool
    change_image: ChangeImage | None


class ThreadedReader(ImageReader):
    """Read requested batches, a few ahead, in a shard's number of threads.

    The threads are independent of other libraries', so several readers can run at once, with more threads than cores.
    """

    def __init__(self, path: Path, shard: Shard, how: Decoding):
        """path: that of the file in messages."""
        self._path, self._shard, self._change_image = path, shard, how.change_image
        # note: the transform of FFCV's decoder, so that pixels are FFCV's
        decoder = decoder_of(how.decoder, fast=True)
        self.decode = partial(decode, decoder=decoder, scaled=how.scaled, fill=how.fill)
        self._size = how.size
        self._local = threading.local()
        self._reading, self._readers = Reading(shard.workers), itertools.count()
        self._threads = ThreadPoolExecutor(shard.workers, "decode", initializer=self._start_thread)

    @abstractmethod
    def filling(self, request: Request, images: np.ndarray) -> Callable[[slice], None]:
        """Return what fills a part of a request's uint8 images [B, H, W, 3], in a thread."""

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

    def reading(self, number: int) -> AbstractContextManager[None]:
        """Record that this thread is reading an image."""
        return self._reading.image(number, self._local.reader)

    def change(self, images: np.ndarray, place: int, request: Request) -> None:
        """Change an image of a request as the algorithms do."""
        if self._change_image is not None:
            index = int(request.indices[place])
            images[place] = self._change_image(images[place], index, request.moment)

    def stalled(self, seconds: float) -> Path | str | None:
        """Return the file if a read has taken more than `seconds`."""
        return None if self._reading.stalled(seconds) is None else self._path

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _start_thread(self) -> None:
        self._local.reader = next(self._readers)

    def _begin(self, request: Request) -> tuple[Tensor, list[Future[None]]]:
        """Start decoding a batch; return uint8 [B, H, W, 3], filled once the tasks are done."""
        count, size = len(request.indices), in_ratio(request.view, self._size)
        images = torch.empty((count, *size, 3), dtype=torch.uint8, pin_memory=has_streams(self._shard.device))
        fill = self.filling(request, images.numpy())
        parts = (slice(first, first + _IMAGES_A_TASK) for first in range(0, count, _IMAGES_A_TASK))
        return images, [self._threads.submit(fill, part) for part in parts]
