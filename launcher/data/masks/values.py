"""Masks as files hold them: class indices, other numbers or colours, which become indices; their pixels by class."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from launcher.counts import count_of
from launcher.data.decode import UnreadableImage, samples
from launcher.data.pixel_types import array_of, is_array

# The index of pixels that are no part of loss and metrics; classes have those below `MOST_CLASSES`.
IGNORED, MOST_CLASSES = 255, 254
_JPEG = b"\xff\xd8"  # the first bytes of a file


class MaskTask(Protocol):
    """What the values of a task state of its masks (`tasks.segmentation`)."""

    @property
    def classes(self) -> Collection[str] | None:
        """The names of the classes, if they are set."""

    @property
    def is_coloured(self) -> bool:
        """Whether the classes are colours."""

    @property
    def ignored_value(self) -> int | None:
        """The number of pixels that do not count."""

    def values(self) -> list[int] | None:
        """Return the number of each class; None if these are 0, 1 ..."""

    def names_of(self, train: Sequence[int], val: Sequence[int], classes: int | None) -> list[str]:
        """Return the names of the classes, given the pixels of each index, and their number, if it is set."""


@dataclass(frozen=True)
class Masks:
    """Reads masks by the values of a task; a colour is red * 65536 + green * 256 + blue.

    `upright` applies their own EXIF rotation.
    """

    values: tuple[int, ...]
    ignored: int | None
    coloured: bool
    upright: bool

    @classmethod
    def of(cls, task: MaskTask, classes: int | None = None, *, upright: bool) -> Masks:
        """Return what reads the masks of a task; classes: their number, if it is known."""
        values = task.values() or range(classes or MOST_CLASSES)
        return cls(tuple(values), task.ignored_value, task.is_coloured, upright)

    def read(self, data: bytes) -> np.ndarray:
        """Return the class of each pixel of a mask's file, uint8 [H, W], IGNORED for those without one.

        Raises UnreadableImage if a pixel has no class, or the format changes values.
        """
        if data.startswith(_JPEG):
            raise UnreadableImage("its mask is a JPEG, which changes values at edges; draw masks as PNG")
        array = array_of(data) if is_array(data) else samples(data, upright=self.upright, as_colours=self.coloured)
        numbers = self._colours(array) if self.coloured else self._numbers(array)
        known, places = self._table
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        unknown = known[at] != numbers
        if unknown.any():
            raise UnreadableImage(self._no_class(numbers[unknown]))
        return places[at]

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """All values in ascending order, int64, and their indices, uint8."""
        indices = {value: number for number, value in enumerate(self.values)}
        if self.ignored is not None:
            indices.setdefault(self.ignored, IGNORED)
        known = sorted(indices)
        return np.array(known, np.int64), np.array([indices[value] for value in known], np.uint8)

    def _numbers(self, array: np.ndarray) -> np.ndarray:
        if array.ndim == 3 and (array == array[..., :1]).all():
            array = array[..., 0]
        if array.ndim != 2:
            raise UnreadableImage(f"a mask of shape {array.shape}; set task.classes={{NAME:'#rrggbb',...}} for colours")
        if np.issubdtype(array.dtype, np.floating) and not (array == np.round(array)).all():
            raise UnreadableImage("a mask of fractions, where classes are whole numbers")
        return array.astype(np.int64)

    def _colours(self, array: np.ndarray) -> np.ndarray:
        if array.ndim != 3 or array.shape[2] < 3:
            raise UnreadableImage(f"a mask of shape {array.shape}, where task.classes has colours")
        return np.asarray(array[..., :3].astype(np.int64) @ np.array([1 << 16, 1 << 8, 1]))

    def _no_class(self, numbers: np.ndarray) -> str:
        """Return the reason for pixels of other values: the value that most of them have."""
        several, counts = np.unique(numbers, return_counts=True)
        value = int(several[counts.argmax()])
        shown = f"the colour '#{value:06x}'" if self.coloured else f"the value {value}"
        pixels = count_of(len(numbers), "pixel")
        return f"{pixels} of the mask without a class, most of them {shown}; add it to task.classes"
