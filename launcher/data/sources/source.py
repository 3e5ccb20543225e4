"""Read files on this machine or in a bucket, through fsspec; imports no torch."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.index import MOST_BYTES, Piece
from launcher.data.listing import is_file, is_folder
from launcher.data.sources.layout import Tree, below, is_remote, problem
from launcher.errors import UserError
from launcher.installation import how_to_open

# Seconds before each retry of a failed read, in addition to fsspec's own retries.
_PAUSES = (1.0, 4.0, 16.0)
# After these seconds of attempts there is no further one; some file systems retry for minutes themselves.
_SECONDS = 20.0

# What to do after a failed read of images, in a run or another command.
RETRY = "; type the same command again, or train resume for a run"
_AHEAD = 1 << 24  # bytes per read of a whole file

# What file systems call the checksum or time of a file.
_VERSIONS = (
    *("ETag", "etag", "md5Hash", "blob_id", "Content-MD5", "Digest", "Last-Modified", "LastModified"),
    *("mtime", "modified", "created"),
)

T = TypeVar("T")


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
        with self.reached():
            try:
                return bool(self.system().info(file)["type"] == "file")
            except FileNotFoundError as error:
                # note: fsspec raises the same error if a web server is unreachable or refuses
                if isinstance(error.__cause__, OSError) or getattr(error.__cause__, "status", 404) != 404:
                    raise error.__cause__ or error from None
        return False

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder, with its path or URL; none if it cannot be read on this machine."""
        with suppress(OSError):
            return [below(folder, name) for name, is_folder in self.entries(folder) if not is_folder]
        return []

    def entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield the names of the folders and files in a folder, and whether each is a folder.

        A folder that is missing in a bucket is empty.
        """
        if not is_remote(self.url):
            with os.scandir(folder) as found:
                yield from (
                    (one.name, is_folder(Path(one))) for one in found if is_folder(Path(one)) or is_file(Path(one))
                )
            return
        listed: Sequence[Mapping[str, Any]] = ()
        with self.reached(), suppress(FileNotFoundError):
            listed = self.system().ls(folder, detail=True)
        yield from ((PurePosixPath(str(one["name"])).name, one["type"] == "directory") for one in listed)

    def tree(self) -> Tree:
        """Return the tree of the folders."""
        return Tree(lambda path: self.entries(below(self.url, path)))

    def sizes(self, folder: str) -> dict[str, int | None]:
        """Return the files in and below a folder of a bucket, as paths below it, with their bytes, if it has them."""
        system = self.system()
        base = system._strip_protocol(folder).rstrip("/") + "/"
        return {str(file).removeprefix(base): one.get("size") for file, one in system.find(base, detail=True).items()}

    def version(self, file: str) -> str:
        """Return what changes with the content of a file: its size, and its checksum or time.

        A file without both is read, and its SHA-256 is computed.

        Raises UserError if it cannot be read.
        """
        if not is_remote(self.url):
            facts = Path(file).stat()
            return f"{facts.st_size}-{facts.st_mtime_ns}"
        with self.reached():
            info = _retried(partial(self.system().info, file))
        stamp = next((info[key] for key in _VERSIONS if info.get(key)), None) or self._digest(file)
        return f"{info['size']}-{stamp}"

    def _digest(self, file: str) -> str:
        with self.reached(), self.open(file, _AHEAD) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]

    def open(self, file: str, ahead: int) -> BinaryIO:
        """Open a file to read and seek in; remote files are read `ahead` bytes at a time."""
        with self.reached():
            opened: Any = self.system().open(file, "rb", block_size=ahead, cache_type="readahead")
        if cache := getattr(opened, "cache", None):
            fetch = partial(_whole, cache.fetcher, opened.size)
            cache.fetcher = lambda start, end: _retried(partial(fetch, start, end))
        return opened  # type: ignore[no-any-return]

    def fetch(self, pieces: Sequence[Piece], remedy: str) -> list[bytes | UnreadableImage]:
        """Read the bytes of images in a bucket, or the reason why one cannot be read.

        Raises UserError if reading fails for all, for example without a network.
        """
        system = self.system()
        files = [piece.file for piece in pieces]
        # note: some web servers serve only whole files
        starts = [None if piece.size is None else piece.start for piece in pieces]
        ends = [None if piece.size is None else piece.start + min(piece.size, MOST_BYTES + 1) for piece in pieces]

        def read() -> list[bytes | UnreadableImage]:
            contents = system.cat_ranges(files, starts, ends, on_error="return")
            return [self._content(*both) for both in zip(pieces, contents, strict=True)]

        with self.reached(remedy):
            return _retried(read)

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
            raise problem(
                self.url, f"needs a package that is not installed ({error}); run {how_to_open(self.url)}"
            ) from None
        except ValueError as error:
            raise problem(self.url, f"{error}; set an s3://, gs://, https:// or other fsspec URL") from None
        return system

    @contextmanager
    def reached(self, remedy: str = "") -> Iterator[None]:
        """Raise errors of a file system, which are arbitrary, as a UserError with a remedy."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            raise self._unreachable(error, remedy) from None

    def _unreachable(self, error: BaseException, remedy: str) -> UserError:
        if isinstance(error, PermissionError) or "Credentials" in type(error).__name__ or _is_denied(error):
            return problem(self.url, f"access denied ({error}); check your credentials and permissions")
        reason = str(error) if type(error) is OSError else f"{type(error).__name__}: {error}"
        return problem(self.url, f"cannot be read ({reason}){remedy}")

    def _content(self, piece: Piece, content: Any) -> bytes | UnreadableImage:
        """Return an image's bytes, or the fault of its file; raise errors that a retry may fix."""
        if isinstance(content, FileNotFoundError):
            return UnreadableImage("no such file")
        if isinstance(content, BaseException):
            raise content
        if len(content) > MOST_BYTES:
            return UnreadableImage("larger than 1 GiB")
        if piece.size in (None, len(content)):
            return bytes(content)
        raise OSError(f"received {len(content):,} of {count_of(piece.size, 'byte')}")


def _whole(fetch: Callable[[int, int], bytes], size: int, start: int, end: int) -> bytes:
    """Fetch the bytes [start, end) of a file of `size` bytes; raise OSError if the server sends another number."""
    content, expected = fetch(start, end), min(end, size) - start
    if len(content) != expected:
        raise OSError(f"received {len(content):,} of {count_of(expected, 'byte')}")
    return content


def _retried(read: Callable[[], T]) -> T:
    """Read, and retry after pauses if a failure may be temporary and fsspec has not retried for longer itself."""
    end = time.monotonic() + _SECONDS
    for pause in _PAUSES:
        try:
            return read()
        except (ValueError, PermissionError):
            # note: a ValueError if the server does not support ranges
            raise
        except Exception as error:
            if time.monotonic() > end or _is_denied(error):
                raise
            time.sleep(pause)
    return read()


def _is_denied(error: BaseException) -> bool:
    """Return whether a web server refuses access."""
    return getattr(error, "status", None) in (401, 403)


def lacks_package(url: str) -> bool:
    """Return whether the package of a URL's protocol, such as s3fs, is not installed."""
    import fsspec

    try:
        fsspec.core.url_to_fs(url)
    except ImportError:
        return True
    except ValueError:  # note: no protocol of fsspec, which a read reports
        return False
    return False
