"""Pictures in a bucket or at a URL, through fsspec: s3://, gs://, https:// and its other kinds; imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from launcher.data.decode import UnreadableImage
from launcher.data.folder import EXTENSIONS, problem
from launcher.data.sources.source import Piece, Report, Source, below, labelled
from launcher.errors import UserError

# Seconds before a read that failed is tried again, on top of what the kind of storage tries itself.
_PAUSES = (1.0, 4.0, 16.0)


@dataclass(frozen=True)
class RemoteFiles:
    """A `Storage` of files that have a URL; `url` is the data set's, whose kind and options count for all."""

    url: str

    def holds(self, file: str) -> bool:
        system = _system(self.url)
        try:
            return bool(system.info(file)["type"] == "file")
        except FileNotFoundError as error:
            # note: fsspec says so of a web server that cannot be reached, or refuses, too
            cause = error.__cause__
            if isinstance(cause, OSError) or getattr(cause, "status", 404) != 404:
                raise _unreachable(self.url, cause or error) from None
            return False
        except Exception as error:
            raise _unreachable(self.url, error) from None

    def open(self, file: str, ahead: int) -> BinaryIO:
        system = _system(self.url)
        try:
            opened: Any = system.open(file, "rb", block_size=ahead, cache_type="readahead")
        except Exception as error:
            raise _unreachable(self.url, error) from None
        if cache := getattr(opened, "cache", None):
            cache.fetcher = _patient(cache.fetcher)
        return opened  # type: ignore[no-any-return]

    def read(self, pieces: Sequence[Piece]) -> list[bytes | UnreadableImage]:
        found: dict[int, bytes | UnreadableImage] = {}
        for pause in (*_PAUSES, None):
            missing = [number for number in range(len(pieces)) if number not in found]
            answers = _fetch(_system(self.url), [pieces[number] for number in missing])
            found |= {n: answer for n, answer in zip(missing, answers, strict=True) if not isinstance(answer, OSError)}
            if len(found) == len(pieces):
                break
            if pause is None:
                failed = next(answer for answer in answers if isinstance(answer, OSError))
                raise _unreachable(self.url, failed)
            time.sleep(pause)
        return [found[number] for number in range(len(pieces))]


def remote_folders(path: str, split: str, report: Report) -> Source:
    """The pictures of class folders in a bucket or on a web server: URL/SPLIT/CLASS/NAME.

    Raises:
        UserError: there are none, or they cannot be listed.
    """
    what = f"list of {split} pictures"
    report(what, 0, 1)
    system = _system(path)
    try:
        base = system._strip_protocol(below(path, split)).rstrip("/") + "/"
        listed = system.find(base, detail=True)
    except FileNotFoundError:
        listed = {}
    except Exception as error:
        raise _unreachable(path, error) from None
    report(what, 1, 1)
    bytes_of = {str(file).removeprefix(base): facts.get("size") for file, facts in listed.items()}
    found = sorted(name.split("/") for name in bytes_of if _is_picture(name))
    if not found:
        raise problem(path, f"holds neither {split}/CLASS/*.jpg nor ImageNet's tar files")
    classes, files, labels = labelled(found)
    return Source(
        path, split, classes, files, labels, RemoteFiles(path),
        lambda n: Piece(files[n], base + files[n]), lambda: [bytes_of[name] for name in files],
    )  # fmt: skip


def _is_picture(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and not any(part.startswith(".") for part in parts) and name.lower().endswith(EXTENSIONS)


def _system(url: str) -> Any:
    """The file system of fsspec for a URL.

    Raises:
        UserError: its kind is not known, or a package is missing.
    """
    import fsspec

    try:
        system, _ = fsspec.core.url_to_fs(url)
    except ImportError as error:
        message = f"needs a package that is not installed ({error}); pip install it beside this program"
        raise problem(url, message) from None
    except ValueError as error:
        raise problem(url, f"{error}; known are s3://, gs://, https:// and what else fsspec knows") from None
    return system


def _fetch(system: Any, pieces: Sequence[Piece]) -> list[bytes | UnreadableImage | OSError]:
    """The bytes of each, that it is not there, or that something failed which may succeed later."""
    starts = [None if piece.size is None else piece.start for piece in pieces]
    ends = [None if piece.size is None else piece.start + piece.size for piece in pieces]
    try:
        answers = system.cat_ranges([piece.file for piece in pieces], starts, ends, on_error="return")
    except Exception as error:
        answers = [error] * len(pieces)
    return [_judged(piece, answer) for piece, answer in zip(pieces, answers, strict=True)]


def _patient(fetch: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """The same, tried again after a failure."""

    def patient(start: int, end: int) -> bytes:
        for pause in _PAUSES:
            try:
                return fetch(start, end)
            except ValueError:
                # note: of a server that gives no parts of files
                raise
            except Exception:
                time.sleep(pause)
        return fetch(start, end)

    return patient


def _judged(piece: Piece, answer: Any) -> bytes | UnreadableImage | OSError:
    if isinstance(answer, FileNotFoundError):
        return UnreadableImage("it is not there")
    if isinstance(answer, BaseException):
        return OSError(f"{type(answer).__name__}: {answer}")
    if piece.size not in (None, len(answer)):
        return OSError(f"{len(answer):,} bytes came instead of {piece.size:,}")
    return bytes(answer)


def _unreachable(url: str, error: BaseException) -> UserError:
    said = str(error) if type(error) is OSError else f"{type(error).__name__}: {error}"
    return problem(url, f"cannot be read ({said}); what is done is kept, the same command goes on")
