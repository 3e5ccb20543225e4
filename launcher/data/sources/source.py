"""What `train prepare` reads: the images of one split, in files here or in a bucket, by fsspec; imports no torch."""

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

# Seconds before a read that failed is tried again, besides what fsspec's file system tries itself.
_PAUSES = (1.0, 4.0, 16.0)
# note: no image that is decoded has as many; a hostile file must not fill the memory
_MOST_BYTES = 1 << 30

# Called with (what is done, how much of it, out of how much) while it is done.
Report = Callable[[str, int, int], None]
T = TypeVar("T")


def quiet(what: str, done: int, total: int) -> None:
    """A `Report` to nobody."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An image as bytes [start, start + size) of a file, to its end where `size` is None; `name` is the image's."""

    name: str
    file: str
    start: int = 0
    size: int | None = None


@dataclass(frozen=True)
class Files:
    """The files below a path or URL: s3://, gs://, https:// and what else fsspec knows.

    Goes to worker processes, so it holds nothing that is open.
    """

    url: str

    def holds(self, file: str) -> bool:
        """Return whether a file is there."""
        if not is_remote(self.url):
            return Path(file).is_file()
        system = self.system()
        try:
            return bool(system.info(file)["type"] == "file")
        except FileNotFoundError as error:
            # note: fsspec raises the same where a web server cannot be reached, or refuses
            cause = error.__cause__
            if isinstance(cause, OSError) or getattr(cause, "status", 404) != 404:
                raise self.unreachable(cause or error) from None
            return False
        except Exception as error:
            raise self.unreachable(error) from None

    def open(self, file: str, ahead: int) -> BinaryIO:
        """Open a file to read and seek in; a remote one is read `ahead` bytes at a time."""
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
        """Read the bytes of some images, or why one cannot be read.

        Raises:
            UserError: none can be read now, such as without a network.
        """
        system = self.system()
        files = [piece.file for piece in pieces]
        bounds = [self._bounds(piece) for piece in pieces]

        def read() -> list[bytes | UnreadableImage]:
            answers = system.cat_ranges(files, *map(list, zip(*bounds, strict=True)), on_error="return")
            return [self._content(*both) for both in zip(pieces, answers, strict=True)]

        try:
            return _retried(read)
        except Exception as error:
            raise self.unreachable(error, "; finished images are kept: run the same command to resume") from None

    def system(self) -> Any:
        """Return fsspec's file system.

        Raises:
            UserError: its kind is not known, or a package is missing.
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
        """Return an error that may pass as one line."""
        if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
            return problem(self.url, f"access denied ({error}); check your credentials and permissions")
        reason = str(error) if type(error) is OSError else f"{type(error).__name__}: {error}"
        return problem(self.url, f"cannot be read ({reason}){remedy}")

    def _bounds(self, piece: Piece) -> tuple[int | None, int | None]:
        if piece.size is None:
            # note: some web servers give whole files only
            return (None, None) if is_remote(self.url) else (0, _MOST_BYTES + 1)
        return piece.start, piece.start + min(piece.size, _MOST_BYTES + 1)

    def _content(self, piece: Piece, answer: Any) -> bytes | UnreadableImage:
        """Return an image's bytes or what is wrong with its file; raise what may pass."""
        if isinstance(answer, FileNotFoundError):
            return UnreadableImage("no such file")
        if isinstance(answer, OSError) and not is_remote(self.url):
            return UnreadableImage(answer.strerror or str(answer))
        if isinstance(answer, BaseException):
            raise answer
        if len(answer) > _MOST_BYTES:
            return UnreadableImage("larger than 1 GiB")
        if piece.size in (None, len(answer)):
            return bytes(answer)
        if not is_remote(self.url):
            return UnreadableImage(f"{piece.file} is truncated within it")
        raise OSError(f"received {len(answer):,} of {piece.size:,} bytes")


def _retried(read: Callable[[], T]) -> T:
    """Read, and after a failure that may pass again, after a pause."""
    for pause in _PAUSES:
        try:
            return read()
        except ValueError:
            # note: of a server that gives no ranges of files
            raise
        except Exception:
            time.sleep(pause)
    return read()


@dataclass(frozen=True)
class Source:
    """The images of one split, sorted by class and name: `names` are CLASS/NAME, `labels` int64 [N].

    `root` is the place in messages. The images lie in the folder `where`, or are bytes [start, start + size) of the tar
    file `where`, by `places` int64 [N, 2]. `sizes` returns the bytes of each, None where only reading would tell.
    `known_as` replaces their list's fingerprint where that would mislead. `skipped` gives the reasons for files that
    lie there and are not among them.
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
        """Return where in `files` an image's bytes are."""
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
