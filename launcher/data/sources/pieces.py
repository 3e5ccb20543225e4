"""Where the bytes of images are: separate files, or parts of archives; imports no torch."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, overload

import numpy as np

# note: larger than any image that can be decoded; a malicious file must not fill the memory
MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Piece:
    """An image named `name`: bytes [start, start + size) of a file, or up to its end if `size` is None.

    `deflated` are the compressed bytes from `start` on, 0 if it is stored as it is. A file with a `version` is read
    through a copy on this machine, another URL from there; that of a table has the images of a `column`.
    """

    name: str
    file: str
    start: int = 0
    size: int | None = None
    deflated: int = 0
    version: str = ""
    column: str = ""

    def __str__(self) -> str:
        return self.file if self.size is None or self.file.endswith(self.name) else f"{self.name} in {self.file}"


class Archive(NamedTuple):
    """A file with many images, in a `column` if it is a table; with a `version` it is read through a copy here."""

    file: str
    version: str = ""
    column: str = ""


@dataclass(frozen=True)
class Packed:
    """The images of archives, int64 [N, 4] `places`: archive, first byte, bytes, and compressed bytes or 0."""

    archives: Sequence[Archive]
    places: np.ndarray

    def piece(self, name: str, number: int) -> Piece:
        """Return where an image is."""
        archive, start, size, deflated = self.places[number].tolist()
        file, version, column = self.archives[archive]
        return Piece(name, file, start, size, deflated, version, column)

    def part(self, numbers: np.ndarray) -> Self:
        """Select the images of these numbers."""
        return replace(self, places=self.places[numbers])

    @property
    def is_fetched(self) -> bool:
        """Return whether the archives are read through copies on this machine."""
        return any(archive.version for archive in self.archives)


class Paths(Sequence[str]):
    """Paths in one array of bytes, since each of millions of Python's texts takes 50 bytes more."""

    def __init__(self, paths: Iterable[str] = ()):
        self._bytes, self._offsets = bytearray(), array("q", [0])
        for path in paths:
            self.append(path)

    @classmethod
    def of(cls, text: np.ndarray, ends: np.ndarray) -> Self:
        """Return the paths of these arrays."""
        paths = cls()
        paths._bytes, paths._offsets = text, ends  # type: ignore[assignment]
        return paths

    @property
    def text(self) -> np.ndarray:
        """The bytes of all paths, uint8."""
        return np.frombuffer(self._bytes, np.uint8)

    @property
    def ends(self) -> np.ndarray:
        """The places in `text` before the first path and after each, int64 [N + 1]."""
        return np.frombuffer(self._offsets, np.int64)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        """Return a path by its number."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        # note: texts of JSON may have halves of surrogate pairs
        return bytes(self._bytes[self._offsets[number] : self._offsets[number + 1]]).decode(errors="surrogatepass")

    def append(self, path: str) -> None:
        """Add a path."""
        self._bytes += path.encode(errors="surrogatepass")
        self._offsets.append(len(self._bytes))


@dataclass(frozen=True)
class Listed:
    """Images in separate files at `paths`."""

    paths: Paths
    is_fetched = False

    def piece(self, name: str, number: int) -> Piece:
        """Return where an image is."""
        return Piece(name, self.paths[number])

    def part(self, numbers: np.ndarray) -> Self:
        """Select the images of these numbers."""
        return replace(self, paths=Paths(map(self.paths.__getitem__, numbers.tolist())))


@dataclass(frozen=True)
class Paired(Listed):
    """Images in separate files at `paths`, and the mask of each at `masks`."""

    masks: Paths

    def part(self, numbers: np.ndarray) -> Self:
        """Select the images of these numbers."""
        return replace(super().part(numbers), masks=Paths(map(self.masks.__getitem__, numbers.tolist())))


@dataclass(frozen=True)
class Remote:
    """Images in class folders of a bucket: the URL of the folder, and the bytes of each [N], None if unknown."""

    url: str
    sizes: np.ndarray
    is_fetched = True

    def piece(self, name: str, number: int) -> Piece:
        """Return where an image is."""
        # note: int64 if all are known, since workers would copy the pages of millions of Python's integers
        size = self.sizes[number]
        return Piece(name, f"{self.url}/{name}", 0, None if size is None else int(size))

    def part(self, numbers: np.ndarray) -> Self:
        """Select the images of these numbers."""
        return replace(self, sizes=self.sizes[numbers])


Stored = Packed | Listed | Remote
