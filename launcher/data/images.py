"""Pictures of a folder as uint8 arrays: what a loader's worker does for one sample."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset, get_worker_info

from launcher.config import schema
from launcher.data.crops import centre_cut, cut, random_crop
from launcher.data.decode import UnreadableImage, decode
from launcher.data.folder import Folder
from launcher.errors import UserError

_NOTHING = -1
# The label of a given picture that cannot be read.
UNREADABLE = -1

# (uint8 pixels [H, W, 3], sample index, epoch) -> the same as augmented
ChangeImage = Callable[[np.ndarray, int, int], np.ndarray]


class Reading:
    """What so many readers read and since when, in memory that the processes of a loader share."""

    def __init__(self, readers: int):
        # note: two numbers for each reader: the picture, and the seconds of the clock that all processes have
        self._table = multiprocessing.get_context("forkserver").RawArray("d", [_NOTHING, 0.0] * readers)

    @contextmanager
    def picture(self, number: int, reader: int = 0) -> Iterator[None]:
        """While a reader reads a picture."""
        self._table[2 * reader + 1] = time.monotonic()
        self._table[2 * reader] = number
        try:
            yield
        finally:
            self._table[2 * reader] = _NOTHING

    def stalled(self, seconds: float) -> int | None:
        """A picture that has been read for more than so many seconds."""
        latest = time.monotonic() - seconds
        for number, since in zip(self._table[::2], self._table[1::2], strict=True):
            if number != _NOTHING and since < latest:
                return int(number)
        return None


class Pictures(Dataset[tuple[np.ndarray, int, int]]):
    """Decoded pictures of a folder, one per key."""

    def __init__(self, folder: Folder, *, upright: bool):
        self.root, self.classes, self.labels = folder.root, folder.classes, folder.labels
        self.upright = upright
        # note: one array of bytes, which worker processes share without a copy; a list of strings they would not
        self.files = np.array([os.fsencode(file) for file in folder.files])
        self.reading = Reading(1)

    def __getitems__(self, keys: Sequence[Any]) -> list[tuple[np.ndarray, int, int]] | UserError:
        """The pictures of a batch; the user's mistake as a value, since a raised one would cross with its traceback."""
        try:
            return [self[key] for key in keys]
        except UserError as error:
            return error

    def open(self, index: int) -> Image.Image:
        """Decode one picture as RGB.

        Raises:
            UserError: it is missing or no picture; names the file and what to do.
        """
        worker = get_worker_info()
        try:
            with self.reading.picture(index, worker.id if worker else 0):
                return decode(self.path(index), upright=self.upright).picture
        except UnreadableImage as reason:
            message = f"{self.path(index)} cannot be read as a picture ({reason}); repair or remove it"
            more = "train doctor names all such pictures, dataset.skip_bad=true leaves them out of a new run"
            raise UserError(f"{message} ({more})") from None

    def path(self, index: int) -> Path:
        return self.root / os.fsdecode(self.files[index])

    def stalled(self, seconds: float) -> Path | None:
        """A file that has been read for more than so many seconds."""
        index = self.reading.stalled(seconds)
        return None if index is None else self.path(index)


class TrainImages(Pictures):
    """Random resized crops, flipped; keyed by (epoch, sample index, side in pixels).

    A sample index modulo the number of pictures is its picture.
    """

    def __init__(
        self, folder: Folder, image: schema.Image, *, seed: int, upright: bool, change_image: ChangeImage | None
    ):
        super().__init__(folder, upright=upright)
        self.image, self.seed, self.change_image = image, seed, change_image

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[np.ndarray, int, int]:
        epoch, index, side = key
        number = index % len(self.labels)
        picture = self.open(number)
        crop = random_crop(self.image, picture.height, picture.width, seed=self.seed, epoch=epoch, index=index)
        pixels = cut(picture, crop, side, self.image.interpolation)
        if self.change_image is not None:
            pixels = self.change_image(pixels, index, epoch)
        return pixels, int(self.labels[number]), index


class EvalImages(Pictures):
    """Centre crops of the resized pictures; keyed by the sample index."""

    def __init__(self, folder: Folder, resize: int, side: int, interpolation: str, *, upright: bool):
        super().__init__(folder, upright=upright)
        self.resize, self.side, self.interpolation = resize, side, interpolation

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, int]:
        pixels = centre_cut(self.open(index), self.resize, self.side, self.interpolation)
        return pixels, int(self.labels[index]), index


class ImageFiles(EvalImages):
    """The same of any files, of no class; what cannot be read is black, and its label says so."""

    def __init__(self, files: Sequence[str], resize: int, side: int, interpolation: str, *, upright: bool):
        labels = np.zeros(len(files), np.int64)
        folder = Folder(Path(), "", [], list(files), labels, 0, "", Counter())
        super().__init__(folder, resize, side, interpolation, upright=upright)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, int]:
        try:
            return super().__getitem__(index)
        except UserError:
            return np.zeros((self.side, self.side, 3), np.uint8), UNREADABLE, index
