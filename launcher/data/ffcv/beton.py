"""The format of FFCV files, their manifests and checks; imports neither FFCV nor torch.

Layout (FFCV 1.0.2, version 2): header, field descriptions, one row of metadata per sample, pages of data, and at the
end a table of (sample, offset, size) of each stored image.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

from launcher.counts import count_of
from launcher.errors import Problem, UserError, first_few
from launcher.files.disk import is_there

VERSION = 2
IMAGE, LABEL = "image", "label"
_KINDS = {IMAGE: 2, LABEL: 1}

HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page_size", "<u4"), ("samples", "<u8"), ("table", "<u8")], align=True
)
FIELD = np.dtype([("kind", "<u1"), ("name", "<u1", 16), ("arguments", "<u1", 1024)], align=True)
ALLOCATION = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
_IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
ROW = np.dtype([("", _IMAGE), ("", "<i8")], align=True)
ROWS_START = HEADER.itemsize + 2 * FIELD.itemsize
JPEG, PIXELS = 0, 1
_MOST_CLASSES, _MOST_PIXELS = 2**24, 10**8
_LEAST_PAGE = 1 << 23


@dataclass(frozen=True)
class Manifest:
    """`values` are those of dataloader.files; `converted` counts images by original form; `skipped` maps to reasons.

    `source` is the fingerprint of the list of images (launcher.data.identity); `exif_orientation` states whether EXIF
    rotation was applied. `sha256` is `checksum`, or that of the file in older ones (`sha256_of`).
    """

    split: str
    samples: int
    classes: list[str]
    values: dict[str, float | int]
    converted: dict[str, int]
    skipped: dict[str, str]
    bytes: int
    sha256: str
    source: str
    exif_orientation: bool
    sha256_of: Literal["file", "images"] = "file"


def page_size(max_side: int) -> int:
    """Return the least power of two from 8 MiB on that holds the pixels of any image."""
    return max(_LEAST_PAGE, 1 << (3 * max_side**2 - 1).bit_length())


def metadata(images: np.ndarray, sizes: np.ndarray, labels: np.ndarray, table: int, page: int) -> tuple[bytes, bytes]:
    """Return a file's header and rows, and its table: of images with their places, sizes in bytes, and labels.

    table: its offset. page: bytes of a page.
    """
    # note: assign field by field, since numpy leaves padding bytes uninitialized
    header, fields = np.zeros(1, HEADER), np.zeros(len(_KINDS), FIELD)
    header["version"], header["fields"], header["page_size"] = VERSION, len(_KINDS), page
    header["samples"], header["table"] = len(images), table
    for field, (name, kind) in zip(fields, _KINDS.items(), strict=True):
        field["kind"] = kind
        field["name"][: len(name)] = np.frombuffer(name.encode(), np.uint8)
    rows, allocations = np.zeros(len(images), ROW), np.zeros(len(images), ALLOCATION)
    rows["f0"], rows["f1"] = images, labels
    allocations["sample"], allocations["place"], allocations["size"] = np.arange(len(images)), images["place"], sizes
    return header.tobytes() + fields.tobytes() + rows.tobytes(), allocations.tobytes()


def checksum(head: bytes, table: bytes, digests: bytes) -> str:
    """Return the SHA-256 in hexadecimal of a file's header and rows, its table, and the SHA-256 of each image in order.

    Processes that store images hash them too. The zeros between pages have no checksum.
    """
    return hashlib.sha256(head + table + digests).hexdigest()


def manifest_path(path: Path) -> Path:
    """Return the path of an FFCV file's manifest."""
    return path.with_name(path.name + ".json")


def read_manifest(path: Path) -> Manifest | None:
    """Read an FFCV file's manifest, or return None if there is none.

    Raises UserError if the manifest is damaged.
    """
    file = manifest_path(path)
    if not is_there(file):
        return None
    try:
        return TypeAdapter(Manifest).validate_json(file.read_bytes(), strict=True)
    except ValueError:
        raise UserError(f"{file} is damaged; remove it to use {path.name} alone, or run train prepare again") from None


@dataclass(frozen=True)
class Beton:
    """A checked FFCV file with the fields `image` and `label` (an integer)."""

    path: Path
    samples: int
    bytes: int
    table: int
    manifest: Manifest | None

    @cached_property
    def rows(self) -> np.ndarray:
        """Metadata [samples]: f0 is the image's mode, width, height and offset, f1 its label."""
        return np.fromfile(self.path, ROW, self.samples, offset=ROWS_START)

    def sizes(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return heights and widths of the stored images of some samples."""
        images = self.rows["f0"][indices % self.samples]
        return images["height"], images["width"]

    @cached_property
    def pieces(self) -> np.ndarray:
        """Sample, offset and size of each stored image, by offset."""
        pieces = np.fromfile(self.path, ALLOCATION, offset=self.table)
        return pieces[np.argsort(pieces["place"])]

    @cached_property
    def classes(self) -> int:
        """Number of classes: from the manifest, else the largest label plus one."""
        return len(self.manifest.classes) if self.manifest else int(self.rows["f1"].max()) + 1


def open_beton(path: Path, key: str = "dataloader.folder") -> Beton:
    """Open an FFCV file and check all but the pixels; errors are about `key`.

    Raises UserError if the file is missing, truncated, unfinished or changed.
    """
    try:
        return _open(path)
    except ValueError as wrong:
        message = f"{path} {wrong}; run train prepare again, or set another file"
        raise UserError(Problem(message, key, path)) from None
    except OSError as error:
        raise UserError(
            Problem(f"{path} cannot be read ({error.strerror}); check its permissions", key, path)
        ) from None


def _open(path: Path) -> Beton:
    size = path.stat().st_size
    header = next(iter(np.fromfile(path, HEADER, 1)), None)
    if header is None or header["version"] != VERSION:
        raise ValueError(f"is not an FFCV file of version {VERSION}")
    if not header["table"]:
        raise ValueError("is incomplete")
    _check_fields(path, int(header["fields"]))
    samples, table = int(header["samples"]), int(header["table"])
    if not samples:
        raise ValueError("contains no images")
    pieces, rest = divmod(size - table, ALLOCATION.itemsize)
    manifest = read_manifest(path)
    if rest or pieces < samples or (manifest and (manifest.samples, manifest.bytes) != (samples, size)):
        expected = f", its manifest lists {manifest.samples:,} and {manifest.bytes:,}" if manifest else ""
        raise ValueError(
            f"is truncated or changed: it has {count_of(samples, 'image')} and {count_of(size, 'byte')}{expected}"
        )
    file = Beton(path, samples, size, table, manifest)
    _check_rows(file, len(manifest.classes) if manifest else _MOST_CLASSES)
    return file


def _check_rows(file: Beton, classes: int) -> None:
    """Raise ValueError for an impossible row: FFCV's compiled code trusts it, and would access other memory."""
    table, pieces = file.table, file.pieces
    if ROWS_START + file.samples * ROW.itemsize > table:
        raise ValueError("has a sample table larger than the file")
    if (pieces["size"] > table).any() or (pieces["place"] > table - pieces["size"]).any():
        raise ValueError("has images that extend past its end")
    images, labels = file.rows["f0"], file.rows["f1"]
    stored = pieces[np.minimum(np.searchsorted(pieces["place"], images["place"]), len(pieces) - 1)]
    pixels = images["width"].astype(np.uint64) * images["height"]
    fits = (images["mode"] == JPEG) | ((images["mode"] == PIXELS) & (stored["size"] == 3 * pixels))
    if not (fits & (stored["place"] == images["place"]) & (pixels > 0) & (pixels <= _MOST_PIXELS)).all():
        raise ValueError("has images whose recorded and stored sizes differ")
    if not ((labels >= 0) & (labels < classes)).all():
        raise ValueError(f"has labels outside 0 to {classes - 1}")


def _check_fields(path: Path, count: int) -> None:
    fields = np.fromfile(path, FIELD, count, offset=HEADER.itemsize)
    names = [field["name"].tobytes().split(b"\0")[0].decode("latin-1") for field in fields]
    kinds = [int(field["kind"]) for field in fields]
    if [*zip(names, kinds, strict=True)] != [*_KINDS.items()]:
        raise ValueError(
            f"has the fields {first_few(names)}; expected {IMAGE} (an RGB image field) and {LABEL} (an integer)"
        )
