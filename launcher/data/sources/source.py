"""Read the images of one split from local files or a bucket, through fsspec, for `train prepare`; imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from launcher.data.decode import UnreadableImage
from launcher.data.folder import is_remote, problem
from launcher.errors import UserError

# Seconds before each retry of a failed read, in addition to fsspec's own retries.
_PAUSES = (1.0, 4.0, 16.0)
# note: larger than any image that can be decoded; a malicious file must not fill the memory
_MOST_BYTES = 1 << 30

# Called with (description, done, total) to show progress.
Report = Callable[[str, int, int], None]
T = TypeVar("T")


def quiet(what: str, done: int, total: int) -> None:
    """A `Report` that prints nothing."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An image named `name`: bytes [start, start + size) of a file, or up to its end if `size` is None."""

    name: str
    file: str
    start: int = 0
    size: int | None = None


@dataclass(frozen=True)
class Files:
    """The files below a path or URL: s3://, gs://, https:// or fsspec's other protocols.

    Sent to worker processes, so it holds no open files.
    """

    url: str

    def holds(self, file: str) -> bool:
        """Return whether a file exists."""
        if not is_remote(self.url):
            return Path(file).is_file()
        system = self.system()
        try:
            return bool(system.info(file)["type"] == "file")
        except FileNotFoundError as error:
            # note: fsspec raises the same error if a web server is unreachable or refuses
            cause = error.__cause__
            if isinstance(cause, OSError) or getattr(cause, "status", 404) != 404:
                raise self.unreachable(cause or error) from None
            return False
        except Exception as error:
            raise self.unreachable(error) from None

    def open(self, file: str, ahead: int) -> BinaryIO:
        """Open a file to read and seek in; remote files are read `ahead` bytes at a time."""
        system = self.system()
        try:
            opened: Any = system.open(file, "rb", block_size=ahead, cache_type="readahead")
        except Exception as error:
            raise self.unreachable(error) from None
        if cache := getattr(opened, "cache", None):
            fetch = cache.fetcher
            cache.fetcher = lambda start, end: _retried(partial(fetch, start, end))
        return opened  # type: ignore[no-any-return]

    def read(self, pieces: Sequence[Piece]) -> list[bytes | UnreadableImage]:
        """Read the bytes of images, or the reason why one cannot be read.

        Raises UserError if reading fails for all, for example without a network.
        """
        system = self.system()
        files = [piece.file for piece in pieces]
        bounds = [self._bounds(piece) for piece in pieces]

        def read() -> list[bytes | UnreadableImage]:
            contents = system.cat_ranges(files, *map(list, zip(*bounds, strict=True)), on_error="return")
            return [self._content(*both) for both in zip(pieces, contents, strict=True)]

        try:
            return _retried(read)
        except Exception as error:
            raise self.unreachable(error, "; finished images are kept: run the same command to resume") from None

    def system(self) -> Any:
        """Return fsspec's file system.

        Raises UserError if the protocol is unknown, or a package is missing.
        """
        import fsspec

        if not is_remote(self.url):
            return fsspec.filesystem("file")
        try:
            system, _ = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            message = f"needs a package that is not installed ({error}); pip install it into this environment"
            raise problem(self.url, message) from None
        except ValueError as error:
            raise problem(self.url, f"{error}; set an s3://, gs://, https:// or other fsspec URL") from None
        return system

    def unreachable(self, error: BaseException, remedy: str = "") -> UserError:
        """Return a one-line error for a failure that a retry may fix."""
        if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
            return problem(self.url, f"access denied ({error}); check your credentials and permissions")
        reason = str(error) if type(error) is OSError else f"{type(error).__name__}: {error}"
        return problem(self.url, f"cannot be read ({reason}){remedy}")

    def _bounds(self, piece: Piece) -> tuple[int | None, int | None]:
        if piece.size is None:
            # note: some web servers serve only whole files
            return (None, None) if is_remote(self.url) else (0, _MOST_BYTES + 1)
        return piece.start, piece.start + min(piece.size, _MOST_BYTES + 1)

    def _content(self, piece: Piece, content: Any) -> bytes | UnreadableImage:
        """Return an image's bytes, or the fault of its file; raise errors that a retry may fix."""
        if isinstance(content, FileNotFoundError):
            return UnreadableImage("no such file")
        if isinstance(content, OSError) and not is_remote(self.url):
            return UnreadableImage(content.strerror or str(content))
        if isinstance(content, BaseException):
            raise content
        if len(content) > _MOST_BYTES:
            return UnreadableImage("larger than 1 GiB")
        if piece.size in (None, len(content)):
            return bytes(content)
        if not is_remote(self.url):
            return UnreadableImage(f"{piece.file} ends before its last byte")
        raise OSError(f"received {len(content):,} of {piece.size:,} bytes")


def _retried(read: Callable[[], T]) -> T:
    """Read, and retry after pauses if a failure may be temporary."""
    for pause in _PAUSES:
        try:
            return read()
        except ValueError:
            # note: the server does not support ranges
            raise
        except Exception:
            time.sleep(pause)
    return read()


@dataclass(frozen=True)
class Source:
    """The images of one split, sorted by class and name: `names` are CLASS/NAME, `labels` int64 [N].

    `root` is the path in messages. The images are in the folder `where`, or are bytes [start, start + size) of the tar
    file `where`, by `places` int64 [N, 2]. `sizes` returns the bytes of each image, None if unknown. `known_as`
    replaces the fingerprint of the list. `skipped` maps skipped files to reasons.
    """

    root: str
    split: str
    classes: list[str]
    names: list[str]
    labels: np.ndarray
    files: Files
    where: str
    sizes: Callable[[], Sequence[int | None]]
    places: np.ndarray | None = None
    known_as: str | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)

    def piece(self, number: int) -> Piece:
        """Return the location of an image in `files`."""
        name = self.names[number]
        if self.places is None:
            return Piece(name, below(self.where, name))
        return Piece(name, self.where, *self.places[number].tolist())


def below(path: str, name: str) -> str:
    """Return the path or URL of a name in a folder."""
    return f"{path.rstrip('/')}/{name}"


def labelled(images: Sequence[Sequence[str]]) -> tuple[list[str], list[str], np.ndarray]:
    """Return the classes of sorted (class, name), the images as CLASS/NAME, and their labels int64."""
    classes, labels = np.unique([name for name, _ in images], return_inverse=True)
    return classes.tolist(), ["/".join(image) for image in images], labels.astype(np.int64)
