"""Write an FFCV file: the places of its images, page by page, its metadata and table; imports no torch.

The file has a temporary name until it is complete, so that an interrupted writer can resume. Its bytes depend only on
the images and settings, not on the number of workers or on interruptions.
"""

import hashlib
import io
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from zipfile import BadZipFile

import numpy as np

from launcher import atomic
from launcher.data.ffcv.beton import ALLOCATION, FIELD, HEADER, IMAGE, LABEL, ROW, ROWS_START, VERSION, checksum
from launcher.data.ffcv.encoder import Form
from launcher.data.ffcv.shared_file import SharedFile
from launcher.disk import patiently
from launcher.errors import UserError
from launcher.locks import Held, lock
from launcher.stopping import defers_stops

_LEAST_PAGE = 1 << 23
_KINDS = {IMAGE: 2, LABEL: 1}


def page_size(max_side: int) -> int:
    """Return the least power of two from 8 MiB on that holds the pixels of any image."""
    return max(_LEAST_PAGE, 1 << (3 * max_side**2 - 1).bit_length())


def partial_files(target: Path) -> tuple[Path, Path]:
    """Return the paths of an unfinished file and of its writer's state."""
    return target.with_name(target.name + ".partial"), target.with_name(target.name + ".state.npz")


@dataclass(frozen=True)
class PageLayout:
    """Where images are in a file: each within one page of so many bytes, after a row of each."""

    page: int

    @classmethod
    def of(cls, max_side: int) -> Self:
        return cls(page_size(max_side))

    def first(self, samples: int) -> int:
        """Return the offset of the first image."""
        return self.next_page(ROWS_START + samples * ROW.itemsize)

    def place(self, end: int, size: int) -> int:
        """Return the offset of an image of so many bytes after the `end` of another."""
        return self.next_page(end) if end % self.page + size > self.page else end

    def next_page(self, end: int) -> int:
        """Return the first page boundary at or after an offset."""
        return -(-end // self.page) * self.page


@dataclass(frozen=True)
class WriterState:
    """What an unfinished file has: the end of its images, a row, size and SHA-256 of each, 0 of a missing one."""

    identity: str
    end: int
    converted: Counter[str]
    rows: np.ndarray
    sizes: np.ndarray
    digests: np.ndarray

    def write(self, path: Path) -> None:
        facts = json.dumps({"identity": self.identity, "end": self.end, "converted": self.converted})
        with atomic.writing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, facts=np.array(facts), rows=self.rows, sizes=self.sizes, digests=self.digests)


def no_digests(samples: int) -> np.ndarray:
    """Return room for the SHA-256 of images, uint8 [samples, 32]."""
    return np.zeros((samples, hashlib.sha256().digest_size), np.uint8)


class BetonWriter:
    """Write a file: `place` images by number, `note` those that were stored in `file`, in this order, then `finish`.

    `missing` are the numbers still to place, in order.

    Raises UserError if another process is writing the same file.
    """

    def __init__(self, target: Path, labels: np.ndarray, max_side: int, identity: str):
        self.target, self.labels, self.identity = target, labels, identity
        self.partial, self._state = partial_files(target)
        self._layout = PageLayout.of(max_side)
        self._end = self._layout.first(len(labels))
        self._rows = np.zeros(len(labels), ROW)
        self._sizes = np.zeros(len(labels), np.uint64)
        self._digests = no_digests(len(labels))
        self._placed: dict[int, tuple[Form, int]] = {}
        self.converted = Counter[str]()
        self._file = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o644)
        self.file = SharedFile(self._file)
        try:
            self._release = lock(self._file, self.partial)
        except Held:
            os.close(self._file)
            raise UserError(f"another process is writing {target}; wait until it ends, or stop it") from None
        self._resume()
        self._next = self._end

    @property
    def missing(self) -> np.ndarray:
        """Numbers of the images that are not stored yet."""
        return np.flatnonzero(self._sizes == 0)

    def place(self, number: int, image: Form) -> int:
        """Return the place of the next image, within one page."""
        place = self._layout.place(self._next, image.size)
        self._next = place + image.size
        self._placed[number] = (image, place)
        return place

    @defers_stops()
    def note(self, number: int, digest: bytes) -> None:
        """Note that the next placed image is stored, with its SHA-256."""
        image, place = self._placed.pop(number)
        self._rows[number] = ((image.mode, image.width, image.height, place), self.labels[number])
        self._sizes[number] = image.size
        self._digests[number] = np.frombuffer(digest, np.uint8)
        self._end = place + image.size
        if image.converted_from:
            self.converted[image.converted_from] += 1

    def state(self) -> WriterState:
        """Return a copy of what describes the noted images."""
        arrays = (self._rows.copy(), self._sizes.copy(), self._digests.copy())
        return WriterState(self.identity, self._end, self.converted.copy(), *arrays)

    def save(self, state: WriterState) -> None:
        """Save stored images and the state that describes them to disk, so that a restarted writer resumes here."""
        os.fsync(self._file)
        state.write(self._state)

    def finish(self) -> tuple[int, str]:
        """Write the metadata and table; return the number of images and the checksum. The name stays temporary."""
        stored = np.flatnonzero(self._sizes)
        table = self._layout.next_page(self._end)
        # note: assign field by field, since numpy leaves padding bytes uninitialized
        rows = np.zeros(len(stored), ROW)
        rows["f0"], rows["f1"] = self._rows["f0"][stored], self._rows["f1"][stored]
        header = np.zeros(1, HEADER)
        header["version"], header["fields"], header["page_size"] = VERSION, len(_KINDS), self._layout.page
        header["samples"], header["table"] = len(stored), table
        allocations = np.zeros(len(stored), ALLOCATION)
        allocations["sample"] = np.arange(len(stored))
        allocations["place"], allocations["size"] = self._rows["f0"]["place"][stored], self._sizes[stored]
        self.file.write(allocations.tobytes(), table)
        os.ftruncate(self._file, table + allocations.nbytes)
        head = header.tobytes() + _descriptions() + rows.tobytes()
        self.file.write(head, 0)
        os.fsync(self._file)
        return len(stored), checksum(head, allocations.tobytes(), self._digests[stored].tobytes())

    def publish(self) -> None:
        """Rename the finished file to its final name."""
        self.partial.replace(self.target)
        self._state.unlink(missing_ok=True)

    def close(self) -> None:
        self._release()
        os.close(self._file)

    def _resume(self) -> None:
        """Restore the state of an interrupted writer of the same images and settings."""
        try:
            content = io.BytesIO(patiently(self._state.read_bytes, self._state))
            with np.load(content) as state:
                facts = json.loads(str(state["facts"]))
                rows, sizes, digests = state["rows"], state["sizes"], state["digests"]
        except (FileNotFoundError, ValueError, EOFError, KeyError, BadZipFile):
            facts = {}
        if facts.get("identity") == self.identity and os.fstat(self._file).st_size >= facts["end"]:
            self._rows, self._sizes, self._digests = rows, sizes, digests
            self._end, self.converted = facts["end"], Counter(facts["converted"])
        os.ftruncate(self._file, self._end)


def _descriptions() -> bytes:
    fields = np.zeros(len(_KINDS), FIELD)
    for field, (name, kind) in zip(fields, _KINDS.items(), strict=True):
        field["kind"] = kind
        field["name"][: len(name)] = np.frombuffer(name.encode(), np.uint8)
    return fields.tobytes()
