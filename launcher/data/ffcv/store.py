"""Images of an FFCV file that runs store while they train, in any order, from all ranks of a machine; no torch.

`.stored` has them in the pages of the file that it becomes, `.stored.table` a row of each, which all processes map.
Both outlive a killed process; the checksum of each image excludes what a crash of the machine left incomplete.
"""

import fcntl
import hashlib
import mmap
import os
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np

from launcher.data.ffcv.beton import ROW
from launcher.data.ffcv.encoder import Encoded
from launcher.data.ffcv.shared_file import write_all
from launcher.data.ffcv.writer import PageLayout, WriterState, no_digests, partial_files
from launcher.data.workers import in_threads
from launcher.disk import line
from launcher.locks import Held, lock

_IMAGES_A_TASK = 16
_HEADER = np.dtype([("identity", "S64"), ("end", "<u8"), ("closed", "u1")])
_STORED = np.dtype([("image", ROW["f0"]), ("size", "<u8"), ("checksum", "<u4"), ("converted", "S64")])


def store_files(target: Path) -> tuple[Path, Path]:
    """Return the paths of the stored images of a file, and of their table."""
    return target.with_name(target.name + ".stored"), target.with_name(target.name + ".stored.table")


class Store:
    """Read and add encoded images by number; `identity` is that of the images and values of the file.

    Any number of processes of a machine may use it at once. If the disk becomes full, all is removed, with one line.

    Raises OSError if it cannot be written.
    """

    def __init__(self, target: Path, samples: int, layout: PageLayout, identity: str):
        self._target, self._paths, self._layout = target, store_files(target), layout
        self._mutex, self._adding = threading.Lock(), 0
        self._checked = np.zeros(samples, bool)
        target.parent.mkdir(parents=True, exist_ok=True)
        size = _HEADER.itemsize + samples * _STORED.itemsize
        while not self._open(size, identity.encode()):
            pass

    def _open(self, size: int, identity: bytes) -> bool:
        """Open or create both files; return False if the table was removed meanwhile, or was of other images."""
        data, table = self._paths
        self._table = os.open(table, os.O_RDWR | os.O_CREAT, 0o644)
        with self._locked():
            is_there, is_new = os.fstat(self._table).st_nlink > 0, os.fstat(self._table).st_size == 0
            if is_there and is_new:
                self._create(size)
            if is_there and os.fstat(self._table).st_size == size and (is_new or data.is_file()):
                mapped = mmap.mmap(self._table, size)
                self._header = np.frombuffer(mapped, _HEADER, 1)
                self._rows = np.frombuffer(mapped, _STORED, offset=_HEADER.itemsize)
                if is_new:
                    self._header[0] = identity, self._layout.first(len(self._rows)), 0
                if self._header["identity"][0] == identity:
                    self._data = os.open(data, os.O_RDWR | os.O_CREAT, 0o644)
                    return True
            if is_there:
                table.unlink()
        os.close(self._table)
        return False

    def _create(self, size: int) -> None:
        try:
            self._paths[0].unlink(missing_ok=True)
            # note: a page of a sparse file that finds the disk full would kill the process
            os.posix_fallocate(self._table, 0, size)
        except OSError:
            self._paths[1].unlink()
            os.close(self._table)
            raise

    def close(self) -> None:
        os.close(self._data)
        os.close(self._table)

    @property
    def is_complete(self) -> bool:
        return bool(self._rows["size"].all())

    def read(self, number: int) -> Encoded | None:
        """Return an image; None if it is not stored, or damaged."""
        row = self._rows[number].copy()
        if not row["size"]:
            return None
        data = os.pread(self._data, int(row["size"]), int(row["image"]["place"]))
        if len(data) != row["size"] or not (self._checked[number] or _checksum(row, data) == row["checksum"]):
            return None
        self._checked[number] = True
        image = row["image"]
        return Encoded(
            int(image["mode"]), int(image["width"]), int(image["height"]), data, row["converted"].decode() or None
        )

    def add(self, number: int, image: Encoded) -> None:
        """Store an image, unless it is there."""
        if self._header["closed"][0]:
            return
        with self._added():
            with self._locked():
                if self._header["closed"][0]:
                    return
                place = self._layout.place(int(self._header["end"][0]), len(image.data))
                self._header["end"] = place + len(image.data)
            try:
                write_all(self._data, image.data, place)
            except OSError as error:
                self._give_up(error)
                return
            row = np.zeros((), _STORED)
            row["image"] = image.mode, image.width, image.height, place
            row["size"], row["converted"] = len(image.data), (image.converted_from or "").encode()
            row["checksum"] = _checksum(row, image.data)
            with self._locked():
                if not self._header["closed"][0]:
                    self._rows[number] = row

    def hand_over(self, identity: str, labels: np.ndarray) -> None:
        """Make this the unfinished file of a writer of the same images, unless that has more or is in use."""
        partial, state = partial_files(self._target)
        self._close()
        # note: without a lock it would take the file from a process that writes it
        file = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            release = lock(file, partial)
            numbers = np.flatnonzero(self._rows["size"]).tolist()
            hashed = dict(zip(numbers, in_threads(self._sha256, numbers, _IMAGES_A_TASK), strict=True))
            intact = [number for number, digest in hashed.items() if digest]
            if intact and os.fstat(file).st_size < os.fstat(self._data).st_size:
                rows, sizes = np.zeros(len(labels), ROW), np.zeros(len(labels), np.uint64)
                rows["f0"][intact], rows["f1"][intact] = self._rows["image"][intact], labels[intact]
                sizes[intact] = self._rows["size"][intact]
                digests = no_digests(len(labels))
                digests[intact] = [np.frombuffer(hashed[number], np.uint8) for number in intact]
                forms = Counter(filter(None, (text.decode() for text in self._rows["converted"][intact].tolist())))
                os.fsync(self._data)
                WriterState(identity, int(self._header["end"][0]), forms, rows, sizes, digests).write(state)
                self._paths[0].replace(partial)
            self._remove()
            release()
        except Held:
            pass
        finally:
            os.close(file)

    def _sha256(self, number: int) -> bytes:
        """Return the SHA-256 of an image, empty if it is damaged."""
        image = self.read(number)
        return b"" if image is None else hashlib.sha256(image.data).digest()

    def _close(self) -> None:
        """Let no process add images, and wait until those that do have finished."""
        with self._locked():
            self._header["closed"] = 1
        fcntl.flock(self._data, fcntl.LOCK_EX)

    def _give_up(self, error: OSError) -> None:
        with self._locked():
            if self._header["closed"][0]:
                return
            self._header["closed"] = 1
            # note: other processes hold the file open, and the run needs the disk
            os.ftruncate(self._data, 0)
            self._remove()
        print(not_stored(error, self._paths[0]), flush=True)

    def _remove(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            fcntl.flock(self._table, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._table, fcntl.LOCK_UN)

    @contextmanager
    def _added(self) -> Iterator[None]:
        """Share a lock of the images while a thread of this process adds one; it ends with the process."""
        with self._mutex:
            if not self._adding:
                fcntl.flock(self._data, fcntl.LOCK_SH)
            self._adding += 1
        try:
            yield
        finally:
            with self._mutex:
                self._adding -= 1
                if not self._adding:
                    fcntl.flock(self._data, fcntl.LOCK_UN)


def adopt(target: Path, labels: np.ndarray, layout: PageLayout, identity: str) -> None:
    """Continue with what runs have stored of a file, as its unfinished file, if they have."""
    if store_files(target)[1].is_file():
        with suppress(OSError), closing(Store(target, len(labels), layout, identity)) as store:
            store.hand_over(identity, labels)


def not_stored(error: OSError, path: Path) -> str:
    """Return the line on images that cannot be stored."""
    return f"dataloader.write_missing=true: images are encoded again in each epoch, not stored: {line(error, path)}"


def _checksum(row: np.ndarray, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(row["image"].tobytes()))
