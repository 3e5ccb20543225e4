"""Where the bytes of images are: separate files, or parts of archives; imports no torch."""

import os
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from stat import S_ISREG
from typing import BinaryIO, NamedTuple, Self

import numpy as np

from launcher.data.decode import UnreadableImage
from launcher.data.sources.copies import local_copy
from launcher.disk import DiskError, patiently

# note: larger than any image that can be decoded; a malicious file must not fill the memory
MOST_BYTES = 1 << 30
_OPEN_FILES = 64


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

    def read(self) -> bytes:
        """Return the bytes of an image.

        Raises UnreadableImage if they are missing or damaged, UserError if a bucket cannot be read, or no copy can be
        made, and DiskError if the disk fails, not the image.
        """
        if "://" in self.file and not self.version:
            (content,) = read_remote([self])
            if isinstance(content, UnreadableImage):
                raise content
            return content
        try:
            data, size = patiently(self._bytes, self.file)
        except DiskError as error:
            if error.may_pass:
                raise
            raise UnreadableImage(getattr(error.__cause__, "strerror", None) or str(error)) from None
        except (OSError, zlib.error) as error:
            raise UnreadableImage(getattr(error, "strerror", None) or str(error)) from None
        if len(data) < size:
            raise UnreadableImage(f"{self.file} ends before its last byte")
        return data

    def _bytes(self) -> tuple[bytes, int]:
        """Return the bytes of an image, and how many it has."""
        size = _size(self.file) if self.size is None else self.size
        if size > MOST_BYTES:
            raise UnreadableImage("larger than 1 GiB")
        if self.size is None:
            with open(self.file, "rb") as file:  # noqa: PTH123 - of a million files
                return file.read(), 0
        data = os.pread(_opened(self.file, self.version, self.column).fileno(), self.deflated or size, self.start)
        if self.deflated:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size)
        return data, size


def _size(file: str) -> int:
    facts = os.stat(file)  # noqa: PTH116 - as above
    # note: opening a pipe would wait for a writer
    if not S_ISREG(facts.st_mode):
        raise UnreadableImage("not a regular file")
    return facts.st_size


def read_remote(pieces: Sequence[Piece]) -> list[bytes | UnreadableImage]:
    """Read images of a bucket at once; return the bytes of each, or why it cannot be read.

    Raises UserError if the bucket cannot be read.
    """
    from launcher.data.sources.source import Files  # note: it imports the pieces

    return Files(pieces[0].file).read(pieces, "; type the same command again, or train resume for a run")


@lru_cache(_OPEN_FILES)
def _opened(file: str, version: str, column: str) -> BinaryIO:
    # note: a copy stays readable after its removal while it is open
    return open(local_copy(file, version, column) if version else file, "rb", buffering=0)  # noqa: PTH123


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

    def part(self, chosen: np.ndarray) -> Self:
        """Select the images where `chosen`, bool [N], is true."""
        return replace(self, places=self.places[chosen])

    @property
    def is_fetched(self) -> bool:
        """Return whether the archives are read through copies on this machine."""
        return any(archive.version for archive in self.archives)


class Paths:
    """Paths in one array of bytes, since each of millions of Python's texts takes 50 bytes more."""

    def __init__(self, paths: Iterable[str] = ()):
        self._text, self._ends = bytearray(), array("q", [0])
        for path in paths:
            self.append(path)

    def __getitem__(self, number: int) -> str:
        """Return a path by its number."""
        # note: texts of JSON may have halves of surrogate pairs
        return self._text[self._ends[number] : self._ends[number + 1]].decode(errors="surrogatepass")

    def append(self, path: str) -> None:
        """Add a path."""
        self._text += path.encode(errors="surrogatepass")
        self._ends.append(len(self._text))


@dataclass(frozen=True)
class Listed:
    """Images in separate files: their `numbers`, int64 [N], among `paths`."""

    paths: Paths
    numbers: np.ndarray
    is_fetched = False

    def piece(self, name: str, number: int) -> Piece:
        """Return where an image is."""
        return Piece(name, self.paths[int(self.numbers[number])])

    def part(self, chosen: np.ndarray) -> Self:
        """Select the images where `chosen`, bool [N], is true."""
        return replace(self, numbers=self.numbers[chosen])


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

    def part(self, chosen: np.ndarray) -> Self:
        """Select the images where `chosen`, bool [N], is true."""
        return replace(self, sizes=self.sizes[chosen])


Stored = Packed | Listed | Remote
