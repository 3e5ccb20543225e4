"""An unfinished FFCV file: one process and its workers store its images, in any order.

`.partial` has the images at their places in the finished file, `.partial.table` a row of each. Both outlive killed
processes: an image that is encoded again gets its place again. The SHA-256 of each excludes what a crash of the machine
left incomplete. Imports no torch.
"""

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from launcher.data.ffcv.beton import ROW, ROWS_START, checksum, metadata, page_size
from launcher.data.workers import Report, in_threads
from launcher.errors import UserError
from launcher.files.disk import write_all
from launcher.files.locks import Held, lock

_IMAGES_A_TASK = 16
_HEAD = np.dtype([("end", "<u8"), ("identity", "S64")])
# digest: zeros of what is not stored; size: 0 without a place; source: bytes of the original, -1 if unknown
_STORED = np.dtype(
    [("digest", "u1", 32), ("image", ROW["f0"]), ("size", "<u8"), ("source", "<i8"), ("converted", "S64")]
)


class Form(NamedTuple):
    """What a file records of an `Encoded` image; `converted_from` is an unusual original form."""

    mode: int
    width: int
    height: int
    size: int
    converted_from: str | None


class Encoded(NamedTuple):
    """An image of a file: `data` is a JPEG or RGB pixels in rows."""

    form: Form
    data: bytes


class Finished(NamedTuple):
    """What the manifest of a finished file has of its bytes."""

    samples: int
    converted: dict[str, int]
    bytes: int
    sha256: str


def partial_files(target: Path) -> tuple[Path, Path]:
    """Return the paths of the images of an unfinished file, and of their table."""
    return target.with_name(target.name + ".partial"), target.with_name(target.name + ".partial.table")


class UnfinishedFile:
    """Store encoded images by number; `identity` is that of the images and values of the file.

    Only the process that is `alone` writes, and its workers, which get a copy. Raises OSError if it cannot be written.
    """

    def __init__(self, target: Path, samples: int, max_side: int, identity: str):
        self._arguments = target, samples, max_side, identity
        self._target, self._samples, self._page = target, samples, page_size(max_side)
        self._first = self._next_page(ROWS_START + samples * ROW.itemsize)
        # note: other versions have tables of another form
        self._identity = hashlib.sha256(f"{identity} {_HEAD} {_STORED}".encode()).hexdigest().encode()
        self._paths = partial_files(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def __reduce__(self) -> Any:
        return UnfinishedFile, self._arguments

    def close(self) -> None:
        os.close(self._data)
        os.close(self._table)

    def place(self, number: int, form: Form, source: int | None = None) -> None:
        """Give an image the next place in one page, unless it has one of its size; source: bytes of its original."""
        # note: several workers place images
        with self._locked(self._table, self._paths[1], wait=True):
            self._place(number, form, source)

    def _place(self, number: int, form: Form, source: int | None) -> None:
        row = self._row(number)
        place = int(row["image"]["place"])
        if row["size"] != form.size:
            end = int(self._head()["end"])
            place = self._next_page(end) if end % self._page + form.size > self._page else end
            self._set_end(place + form.size)
        image, converted = (form.mode, form.width, form.height, place), (form.converted_from or "").encode()
        new = np.array((row["digest"], image, form.size, -1 if source is None else source, converted), _STORED)
        if new.tobytes() != row.tobytes():
            new["digest"] = 0
            os.pwrite(self._table, new.tobytes(), self._offset(number))

    def store(self, number: int, data: bytes) -> None:
        """Write an image to its place."""
        write_all(self._data, data, int(self._row(number)["image"]["place"]))
        os.pwrite(self._table, hashlib.sha256(data).digest(), self._offset(number))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Open the file for this process alone, as it was left or empty; raises UserError if another one writes it."""
        while True:
            try:
                with self._locked(self._data, self._paths[0], wait=False):
                    # note: another process may have finished it meanwhile
                    if self._is_current() and self._is_of_images():
                        yield
                        return
            except Held:
                message = f"another process is writing {self._target}; wait until it ends, or stop it"
                raise UserError(message) from None
            self.close()
            self._open()

    @contextmanager
    def _locked(self, file: int, path: Path, *, wait: bool) -> Iterator[None]:
        release = lock(file, path, wait=wait)
        try:
            yield
        finally:
            release()
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)

    def missing(self, sources: Sequence[int | None], report: Report) -> list[int]:
        """Return the numbers of the images that are not stored, are damaged, or had originals of other bytes."""
        numbers = np.flatnonzero(self._rows()["digest"].any(axis=1)).tolist()
        intact = in_threads(
            partial(self._is_intact, sources), numbers, _IMAGES_A_TASK, report, f"checksum of {self._paths[0].name}"
        )
        damaged = [number for number, is_intact in zip(numbers, intact, strict=True) if not is_intact]
        for number in damaged:
            os.pwrite(self._table, bytes(32), self._offset(number))
        return sorted({*range(self._samples)}.difference(numbers).union(damaged))

    def _is_intact(self, sources: Sequence[int | None], number: int) -> bool:
        row = self._row(number)
        data = os.pread(self._data, int(row["size"]), int(row["image"]["place"]))
        same_bytes = hashlib.sha256(data).digest() == row["digest"].tobytes()
        return same_bytes and sources[number] in (None, row["source"])

    @contextmanager
    def finished(self, labels: np.ndarray) -> Iterator[Finished]:
        """Write metadata and table; give the file its name after the block."""
        rows = self._rows()
        stored = np.flatnonzero(rows["digest"].any(axis=1))
        table = self._next_page(int(self._head()["end"]))
        images, sizes = rows["image"][stored], rows["size"][stored]
        head, allocations = metadata(images, sizes, labels[stored], table, self._page)
        write_all(self._data, allocations, table)
        os.ftruncate(self._data, size := table + len(allocations))
        write_all(self._data, head, 0)
        os.fsync(self._data)
        forms = Counter(text.decode(errors="ignore") for text in rows["converted"][stored].tolist() if text)
        digest = checksum(head, allocations, rows["digest"][stored].tobytes())
        yield Finished(len(stored), dict(sorted(forms.items())), size, digest)
        self._paths[0].replace(self._target)
        self._paths[1].unlink()

    def _open(self) -> None:
        self._data, self._table = (os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in self._paths)

    def _is_of_images(self) -> bool:
        """Return whether the files are of these images, as new ones become; others are removed."""
        is_new = not os.fstat(self._table).st_size
        has_data = os.fstat(self._data).st_size > 0
        if not is_new and has_data and self._head()["identity"] == self._identity:
            # note: what a killed process, or a crash of the machine, left after the last place
            rows = self._rows()
            end = max(self._first, int((rows["image"]["place"] + rows["size"]).max(initial=0)))
            self._set_end(end)
            os.ftruncate(self._data, end)
            return True
        if is_new and not has_data:
            os.ftruncate(self._table, self._offset(self._samples))
            os.pwrite(self._table, np.array((self._first, self._identity), _HEAD).tobytes(), 0)
            os.ftruncate(self._data, self._first)
            return True
        # note: workers of a killed process may have them open
        for path in self._paths:
            path.unlink(missing_ok=True)
        return False

    def _is_current(self) -> bool:
        """Return whether the open files have their paths: another process may have finished or removed them."""
        with suppress(FileNotFoundError):
            opened = map(os.fstat, (self._data, self._table))
            return all(os.path.samestat(path.stat(), one) for path, one in zip(self._paths, opened, strict=True))
        return False

    def _next_page(self, end: int) -> int:
        return -(-end // self._page) * self._page

    def _head(self) -> Any:
        return np.frombuffer(os.pread(self._table, _HEAD.itemsize, 0), _HEAD)[0]

    def _set_end(self, end: int) -> None:
        os.pwrite(self._table, np.uint64(end).tobytes(), 0)

    def _offset(self, number: int) -> int:
        return _HEAD.itemsize + number * _STORED.itemsize

    def _row(self, number: int) -> Any:
        return np.frombuffer(os.pread(self._table, _STORED.itemsize, self._offset(number)), _STORED)[0]

    def _rows(self) -> np.ndarray:
        with os.fdopen(os.dup(self._table), "rb") as file:
            file.seek(_HEAD.itemsize)
            return np.fromfile(file, _STORED, self._samples)
