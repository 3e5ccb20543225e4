"""What `train prepare` reads: the pictures of one split, wherever they lie; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

import numpy as np

from launcher.data.decode import UnreadableImage

# Told (what is done, how much of it, out of how much) while it is done.
Report = Callable[[str, int, int], None]


def quiet(what: str, done: int, total: int) -> None:
    """A `Report` to nobody."""


@dataclass(frozen=True)
class Piece:
    """A picture as bytes [start, start + size) of a file, to its end where `size` is None; `name` is the picture's."""

    name: str
    file: str
    start: int = 0
    size: int | None = None


class Storage(Protocol):
    """Where files lie. Goes to worker processes, so it holds nothing that is open."""

    def holds(self, file: str) -> bool:
        """Whether a file is there."""

    def open(self, file: str, ahead: int) -> BinaryIO:
        """A file to read and seek in; what is far away is read `ahead` bytes at a time."""

    def read(self, pieces: Sequence[Piece]) -> list[bytes | UnreadableImage]:
        """The bytes of some pictures, or why one cannot be had.

        Raises:
            UserError: none can be had now, such as without a network.
        """


@dataclass(frozen=True)
class Source:
    """The pictures of one split, sorted by class and name: `files` are CLASS/NAME, `labels` int64 [N].

    `root` is what messages call the place; `piece` says where the picture of a number is in `storage`; `sizes` gives
    the bytes of each, None where only reading would tell. `known_as` stands for their list where that would mislead.
    `skipped` says why some that lie there are not among them.
    """

    root: str
    split: str
    classes: list[str]
    files: list[str]
    labels: np.ndarray
    storage: Storage
    piece: Callable[[int], Piece]
    sizes: Callable[[], Sequence[int | None]]
    known_as: str | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)


def below(path: str, name: str) -> str:
    """The path or URL of a name in a folder."""
    return f"{path.rstrip('/')}/{name}"


def labelled(pictures: Sequence[Sequence[str]]) -> tuple[list[str], list[str], np.ndarray]:
    """The classes of sorted (class, name), the pictures as CLASS/NAME, and their labels int64."""
    classes = sorted({name for name, _ in pictures})
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[name] for name, _ in pictures], np.int64)
    return classes, ["/".join(picture) for picture in pictures], labels
