"""Write an FFCV file: RGB images of bounded size, as pixels or JPEGs, page by page; imports no torch.

The file has a temporary name until it is complete, so that an interrupted writer can resume. Its bytes depend only on
the images and settings, not on the number of workers or on interruptions.
"""

import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self
from zipfile import BadZipFile

import cv2
import numpy as np
from PIL import Image

from launcher import atomic, randomness
from launcher.data.decode import Decoded, UnreadableImage, decode
from launcher.data.ffcv.beton import ALLOCATION, FIELD, HEADER, IMAGE, JPEG, LABEL, PIXELS, ROW, ROWS_START, VERSION
from launcher.data.ffcv.values import FFCVFile
from launcher.data.sources.reading import read_all
from launcher.data.sources.source import Files, Piece
from launcher.disk import patiently
from launcher.errors import UserError
from launcher.locks import Held, lock
from launcher.stopping import defers_stops

_LEAST_PAGE = 1 << 23
_KINDS = {IMAGE: 2, LABEL: 1}


@dataclass(frozen=True)
class Encoded:
    """A stored image: `data` is a JPEG or RGB pixels in rows, `converted_from` an unusual original form."""

    mode: int
    width: int
    height: int
    data: bytes
    converted_from: str | None


def encode_all(
    files: Files, items: Sequence[tuple[int, Piece]], *, values: FFCVFile, upright: bool
) -> list[Encoded | UnreadableImage]:
    """Encode images by their positions in the data set, which determine whether one is stored as a JPEG.

    `upright` applies EXIF rotation.

    Raises UserError if the files cannot be read.
    """
    # note: OpenCV's own threads would compete with the other worker processes
    cv2.setNumThreads(1)
    numbers, pieces = zip(*items, strict=True)
    chances = randomness.uniforms(0, "jpeg", 0, np.array(numbers), 1)[:, 0]
    return [
        _encode(data, piece.name, values, upright=upright, as_jpeg=bool(chance < values.jpeg_share))
        for data, piece, chance in zip(read_all(files, pieces), pieces, chances, strict=True)
    ]


def _encode(
    data: bytes | UnreadableImage, name: str, values: FFCVFile, *, upright: bool, as_jpeg: bool
) -> Encoded | UnreadableImage:
    if isinstance(data, UnreadableImage):
        return data
    try:
        decoded = decode(data, upright=upright)
    except UnreadableImage as reason:
        return reason.with_traceback(None)
    original = _unusual(decoded, name)
    pixels = shrink(np.asarray(decoded.image), values.max_side)
    height, width = pixels.shape[:2]
    if not as_jpeg:
        return Encoded(PIXELS, width, height, pixels.tobytes(), original)
    return Encoded(JPEG, width, height, to_jpeg(pixels, values), original)


def shrink(pixels: np.ndarray, max_side: int) -> np.ndarray:
    """Scale uint8 [H, W, 3] down, by averaging areas, until height and width fit; rounds as FFCV does."""
    ratio = max_side / max(pixels.shape[:2])
    if ratio >= 1:
        return pixels
    size = (max(1, int(ratio * pixels.shape[1])), max(1, int(ratio * pixels.shape[0])))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))


def to_jpeg(pixels: np.ndarray, values: FFCVFile) -> bytes:
    """Encode uint8 RGB pixels [H, W, 3] as a JPEG with chroma at half the resolution."""
    parameters = [cv2.IMWRITE_JPEG_QUALITY, values.quality]
    if values.restart_interval:
        parameters += [cv2.IMWRITE_JPEG_RST_INTERVAL, aligned_interval(pixels.shape[1], values.restart_interval)]
    done, data = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), parameters)
    assert done, "OpenCV encodes every uint8 image"
    return data.tobytes()


def aligned_interval(width: int, most: int) -> int:
    """Return the longest restart interval of at most `most` blocks of 16 pixels that divides each row evenly."""
    blocks = -(-width // 16)
    return next(interval for interval in range(min(most, blocks), 0, -1) if blocks % interval == 0)


def _unusual(decoded: Decoded, name: str) -> str | None:
    """Describe an unusual but convertible image."""
    suffix = PurePosixPath(name).suffix.lower()
    # note: Pillow calls a JPEG of several images MPO
    kind = decoded.format.replace("MPO", "JPEG")
    parts = [f"{kind} named {suffix}"] if kind != Image.registered_extensions().get(suffix) else []
    parts += [decoded.mode] if decoded.mode != "RGB" else []
    parts += ["turned upright"] if decoded.turned else []
    return ", ".join(parts) or None


def page_size(max_side: int) -> int:
    """Return the least power of two from 8 MiB on that holds the pixels of any image."""
    return max(_LEAST_PAGE, 1 << (3 * max_side**2 - 1).bit_length())


def partial_files(target: Path) -> tuple[Path, Path]:
    """Return the paths of an unfinished file and of its writer's state."""
    return target.with_name(target.name + ".partial"), target.with_name(target.name + ".state.npz")


@dataclass(frozen=True)
class Layout:
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
class State:
    """What an unfinished file has: the end of its images, a row and a size of each, 0 of a missing one."""

    identity: str
    end: int
    converted: Counter[str]
    rows: np.ndarray
    sizes: np.ndarray

    def write(self, path: Path) -> None:
        facts = json.dumps({"identity": self.identity, "end": self.end, "converted": self.converted})
        with atomic.writing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, facts=np.array(facts), rows=self.rows, sizes=self.sizes)


class BetonWriter:
    """Write a file: `add` images by number, then `finish`; `missing` are the numbers still to add, in order.

    Raises UserError if another process is writing the same file.
    """

    def __init__(self, target: Path, labels: np.ndarray, max_side: int, identity: str):
        self.target, self.labels, self.identity = target, labels, identity
        self.partial, self._state = partial_files(target)
        self._layout = Layout.of(max_side)
        self._end = self._layout.first(len(labels))
        self._rows = np.zeros(len(labels), ROW)
        self._sizes = np.zeros(len(labels), np.uint64)
        self.converted = Counter[str]()
        self._file = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._release = lock(self._file, self.partial)
        except Held:
            os.close(self._file)
            raise UserError(f"another process is writing {target}; wait until it ends, or stop it") from None
        self._resume()

    @property
    def missing(self) -> np.ndarray:
        """Numbers of the images that are not stored yet."""
        return np.flatnonzero(self._sizes == 0)

    @defers_stops()
    def add(self, number: int, image: Encoded) -> None:
        """Store one image, within one page."""
        size = len(image.data)
        self._end = self._layout.place(self._end, size)
        write_all(self._file, image.data, self._end)
        self._rows[number] = ((image.mode, image.width, image.height, self._end), self.labels[number])
        self._sizes[number] = size
        self._end += size
        if image.converted_from:
            self.converted[image.converted_from] += 1

    @defers_stops()
    def save(self) -> None:
        """Save the added images and state to disk, so that a restarted writer resumes here."""
        os.fsync(self._file)
        State(self.identity, self._end, self.converted, self._rows, self._sizes).write(self._state)

    def finish(self) -> int:
        """Write the metadata and table; return the number of images. The name stays temporary."""
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
        write_all(self._file, allocations.tobytes(), table)
        os.ftruncate(self._file, table + allocations.nbytes)
        write_all(self._file, header.tobytes() + _descriptions() + rows.tobytes(), 0)
        os.fsync(self._file)
        return len(stored)

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
                facts, rows, sizes = json.loads(str(state["facts"])), state["rows"], state["sizes"]
        except (FileNotFoundError, ValueError, EOFError, KeyError, BadZipFile):
            facts = {}
        if facts.get("identity") == self.identity and os.fstat(self._file).st_size >= facts["end"]:
            self._rows, self._sizes = rows, sizes
            self._end, self.converted = facts["end"], Counter(facts["converted"])
        os.ftruncate(self._file, self._end)


def _descriptions() -> bytes:
    fields = np.zeros(len(_KINDS), FIELD)
    for field, (name, kind) in zip(fields, _KINDS.items(), strict=True):
        field["kind"] = kind
        field["name"][: len(name)] = np.frombuffer(name.encode(), np.uint8)
    return fields.tobytes()


def write_all(file: int, data: bytes, offset: int) -> None:
    """Write all data; one call may write less, and at most 2 GiB."""
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
