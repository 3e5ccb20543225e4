"""An unfinished FFCV file: runs and `train prepare` store its images, in any order, from all processes of a machine.

`.partial` has the images at their places in the finished file, `.partial.table` a row of each. Both outlive killed
processes: an image that is encoded again gets its place again. The SHA-256 of each excludes what a crash of the machine
left incomplete. Imports no torch.
"""

import errno
import fcntl
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from launcher.data.ffcv.beton import ROW, ROWS_START, checksum, metadata, page_size
from launcher.data.workers import Report, in_threads
from launcher.disk import line, write_all
from launcher.errors import UserError
from launcher.locks import UNSUPPORTED, Held, lock

_IMAGES_A_TASK = 16
# prepared: whether `train prepare` has opened the file, which no run removes then
_HEAD = np.dtype([("end", "<u8"), ("identity", "S64"), ("prepared", "?")])
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
    """Read and store encoded images by number; `identity` is that of the images and values of the file.

    shared: several processes store images at once, which needs locks of files; else one does, with its workers.

    Raises OSError if it cannot be written, and UserError if another process finishes the file from other images.
    """

    def __init__(self, target: Path, samples: int, max_side: int, identity: str, *, shared: bool = False):
        self._arguments = target, samples, max_side, identity
        self._target, self._samples, self._page, self._shared = target, samples, page_size(max_side), shared
        self._first = self._next_page(ROWS_START + samples * ROW.itemsize)
        self._paths, self._mutex, self._gave_up = partial_files(target), threading.Lock(), False
        self._checked = np.zeros(samples, bool)
        target.parent.mkdir(parents=True, exist_ok=True)
        # note: other versions have tables of another form
        while not self._open(hashlib.sha256(f"{identity} {_HEAD} {_STORED}".encode()).hexdigest().encode()):
            pass
        if not shared:
            # note: `prepared`, the last byte of the head
            os.pwrite(self._table, b"\1", _HEAD.itemsize - 1)

    def __reduce__(self) -> Any:
        return UnfinishedFile, self._arguments

    def close(self) -> None:
        os.close(self._data)
        os.close(self._table)

    @property
    def is_complete(self) -> bool:
        return bool(self._rows()["digest"].any(axis=1).all())

    def read(self, number: int, source: Callable[[int], int | None] = lambda _: None) -> Encoded | None:
        """Return an image; None if it is not stored, damaged, or of an original that had other bytes than `source`."""
        row = self._row(number)
        if not row["digest"].any():
            return None
        mode, width, height, place = row["image"].tolist()
        data = os.pread(self._data, int(row["size"]), place)
        if not self._checked[number]:
            if hashlib.sha256(data).digest() != row["digest"].tobytes() or source(number) not in (None, row["source"]):
                return None
            self._checked[number] = True
        return Encoded(Form(mode, width, height, len(data), row["converted"].decode(errors="ignore") or None), data)

    def add(self, number: int, image: Encoded, source: int | None = None) -> None:
        """Store an image of a run; if the disk is full, remove all but what is prepared, with one line."""
        if self._gave_up:
            return
        try:
            self.place(number, image.form, source)
            self.store(number, image.data)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._give_up(error)

    def place(self, number: int, form: Form, source: int | None = None) -> None:
        """Give an image the next place within one page, unless it has one of its size; source: bytes of its original.

        Raises FileNotFoundError if another process has finished or removed the file.
        """
        with self._locked():
            self._check_paths()
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
        """Let no other process finish or remove the file; raises UserError if one does."""
        try:
            release = lock(self._data, self._paths[0])
        except Held:
            raise UserError(f"another process is writing {self._target}; wait until it ends, or stop it") from None
        try:
            yield
        finally:
            release()
            with suppress(OSError):
                fcntl.flock(self._data, fcntl.LOCK_UN)

    def missing(self, sources: Sequence[int | None], report: Report) -> list[int]:
        """Return the numbers of the images that `read` does not return; call it `alone`."""
        numbers = np.flatnonzero(self._rows()["digest"].any(axis=1)).tolist()
        read = partial(self.read, source=sources.__getitem__)
        images = in_threads(read, numbers, _IMAGES_A_TASK, report, f"checksum of {self._paths[0].name}")
        damaged = [number for number, image in zip(numbers, images, strict=True) if image is None]
        for number in damaged:
            os.pwrite(self._table, bytes(32), self._offset(number))
        return sorted({*range(self._samples)}.difference(numbers).union(damaged))

    @contextmanager
    def finished(self, labels: np.ndarray) -> Iterator[Finished]:
        """Write metadata and table; give the file its name after the block, in which nothing can be stored."""
        # note: the bulk, while others can still store
        os.fsync(self._data)
        with self._locked():
            self._check_paths()
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

    def _open(self, identity: bytes) -> bool:
        """Open or create both files; return False if others have replaced them meanwhile, or must."""
        self._data, self._table = (os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in self._paths)
        try:
            with self._locked():
                if self._is_current() and self._is_of(identity):
                    return True
        except BaseException:
            self.close()
            raise
        self.close()
        return False

    def _is_of(self, identity: bytes) -> bool:
        """Return whether the files are of these images, as new ones become; others are removed."""
        is_new = not os.fstat(self._table).st_size
        if not is_new and os.fstat(self._data).st_size and self._head()["identity"] == identity:
            # note: what a killed process, or a crash of the machine, left after the last place
            rows = self._rows()
            end = max(self._first, int((rows["image"]["place"] + rows["size"]).max(initial=0)))
            self._set_end(end)
            os.ftruncate(self._data, end)
            return True
        with self.alone():
            if is_new and not os.fstat(self._data).st_size:
                os.ftruncate(self._table, self._offset(self._samples))
                os.pwrite(self._table, np.array((self._first, identity, False), _HEAD).tobytes(), 0)
                os.ftruncate(self._data, self._first)
                return True
            # note: processes that have them open would store other images in them
            self._remove()
        return False

    def _is_current(self) -> bool:
        """Return whether the open files have their paths: another process may have finished or removed them."""
        with suppress(FileNotFoundError):
            opened = map(os.fstat, (self._data, self._table))
            return all(os.path.samestat(path.stat(), one) for path, one in zip(self._paths, opened, strict=True))
        return False

    def _check_paths(self) -> None:
        if not self._is_current():
            raise FileNotFoundError(errno.ENOENT, "another process has finished or removed it", str(self._paths[0]))

    def _give_up(self, error: OSError) -> None:
        self._gave_up = True
        # note: a process that finishes the file keeps it, and fails too
        with suppress(UserError), self.alone(), self._locked():
            if self._is_current():
                if not (stays := self._head()["prepared"]):
                    # note: other processes hold the file open, and the run needs the disk
                    os.ftruncate(self._data, 0)
                    self._remove()
                kept = "; what is stored stays for train prepare" if stays else ""
                print(f"{not_stored(error, self._paths[0])}{kept}", flush=True)

    def _remove(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)

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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            self._flock(fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._flock(fcntl.LOCK_UN)

    def _flock(self, operation: int) -> None:
        try:
            fcntl.flock(self._table, operation)
        except OSError as error:
            # note: one process, which is `alone` by a lease, needs no locks
            if self._shared or error.errno not in UNSUPPORTED:
                raise


def not_stored(error: OSError | UserError, path: Path) -> str:
    """Return the line on images that cannot be stored."""
    why = line(error, path) if isinstance(error, OSError) else error.line
    return f"dataloader.write_missing=true: images are encoded again in each epoch, not stored: {why}"
