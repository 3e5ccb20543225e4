"""Read files on this machine or in a bucket, through fsspec; imports no torch."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.sources.layout import is_remote, problem
from launcher.data.sources.pieces import MOST_BYTES, Piece
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

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder, with its path or URL; none if it does not exist."""
        if not is_remote(self.url):
            with suppress(OSError), os.scandir(folder) as entries:
                return [entry.path for entry in entries if entry.is_file()]
            return []
        return [below(folder, name) for name, kind in self.entries(folder) if kind == "file"]

    def entries(self, folder: str) -> list[tuple[str, str]]:
        """Return the names and types, `file` or `directory`, in a folder of a bucket; none if it does not exist."""
        try:
            listed = self.system().ls(folder, detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self.unreachable(error) from None
        return [(PurePosixPath(str(one["name"])).name, one["type"]) for one in listed]

    def version(self, file: str) -> str:
        """Return what changes with the content of a file: its size, and its checksum or time.

        A file without both is read, and its SHA-256 is computed.

        Raises UserError if it cannot be read.
        """
        if not is_remote(self.url):
            facts = Path(file).stat()
            return f"{facts.st_size}-{facts.st_mtime_ns}"
        try:
            info = _retried(partial(self.system().info, file))
        except Exception as error:
            raise self.unreachable(error) from None
        stamp = next((info[key] for key in _VERSIONS if info.get(key)), None) or self._digest(file)
        return f"{info['size']}-{stamp}"

    def _digest(self, file: str) -> str:
        digest = hashlib.sha256()
        with self.open(file, _AHEAD) as opened:
            try:
                while chunk := opened.read(_AHEAD):
                    digest.update(chunk)
            # note: file systems raise arbitrary errors
            except Exception as error:
                raise self.unreachable(error) from None
        return digest.hexdigest()

    def open(self, file: str, ahead: int) -> BinaryIO:
        """Open a file to read and seek in; remote files are read `ahead` bytes at a time."""
        system = self.system()
        try:
            opened: Any = system.open(file, "rb", block_size=ahead, cache_type="readahead")
        except Exception as error:
            raise self.unreachable(error) from None
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

        try:
            return _retried(read)
        except Exception as error:
            raise self.unreachable(error, remedy) from None

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

    def unreachable(self, error: BaseException, remedy: str = "") -> UserError:
        """Return a one-line error for a failure that a retry may fix."""
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


def below(path: str, name: str) -> str:
    """Return the path or URL of a name in a folder."""
    return f"{path.rstrip('/')}/{name}"
