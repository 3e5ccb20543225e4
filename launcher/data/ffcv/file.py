"""FFCV files seen from outside: where they are, whether they are whole, and what they hold; imports neither FFCV
nor torch.

Layout (FFCV 1.0.2, version 2): header, field descriptions, a row of metadata a sample, pages of data, and at the end a
table of (sample, place, size) for each stored piece.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from launcher import paths
from launcher.config.schema import Dataset, FFCVFile, FFCVFiles, FFCVLoader, RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.data.ffcv.manifest import Manifest, manifest_path, read_manifest
from launcher.data.folder import FFCV, only_prepared
from launcher.data.shapes import shapes_folder
from launcher.errors import Problem, UserError

_SMALL_SIDE = "dataloader.files.small_side"
VERSION = 2
SUFFIX = ".beton"
IMAGE, LABEL = "image", "label"

HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page_size", "<u4"), ("samples", "<u8"), ("table", "<u8")], align=True
)
FIELD = np.dtype([("kind", "<u1"), ("name", "<u1", 16), ("arguments", "<u1", 1024)], align=True)
ALLOCATION = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
_PICTURE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
ROW = np.dtype([("", _PICTURE), ("", "<i8")], align=True)
ROWS_START = HEADER.itemsize + 2 * FIELD.itemsize
JPEG, PIXELS = 0, 1
_MOST_FIELDS, _MOST_CLASSES, _MOST_PIXELS = 64, 2**24, 10**8


@dataclass(frozen=True)
class Beton:
    """A whole FFCV file whose first fields are a picture `image` and an integer `label`."""

    path: Path
    samples: int
    bytes: int
    manifest: Manifest | None

    @cached_property
    def rows(self) -> np.ndarray:
        """Metadata [samples]: f0 the picture's mode, width, height and place, f1 its label."""
        return np.fromfile(self.path, ROW, self.samples, offset=ROWS_START)

    @cached_property
    def classes(self) -> int:
        """Number of classes: as the manifest says, else one more than the largest label."""
        return len(self.manifest.classes) if self.manifest else int(self.rows["f1"].max()) + 1


@dataclass(frozen=True)
class FFCVDataset:
    """The FFCV files of a data set; `seed` is the one that pictures were set apart for validation with."""

    loader: FFCVLoader
    dataset: Dataset
    seed: int

    @classmethod
    def of(cls, config: RunConfig) -> FFCVDataset:
        """Those of a config with `dataloader=ffcv`."""
        assert isinstance(config.dataloader, FFCVLoader)
        return cls(config.dataloader, config.dataset, config.seed)

    def path(self, split: str) -> Path:
        """The file of a split: the one given, or that of the folder whose name tells the values it was written with.

        Raises:
            UserError: no folder is given.
        """
        given = self._given(split)
        return Path(given) if given is not None else self._written(split, self.loader.files)

    def open(self, split: str) -> Beton:
        """The file of a split.

        Raises:
            UserError: it is not there, or not a whole file of pictures and labels.
        """
        path = self.path(split)
        key = "dataloader.folder" if self._given(split) is None else f"dataloader.{split}"
        found, upright = self._open(path, key), self.dataset.exif_orientation
        if found.manifest is not None and found.manifest.exif_orientation not in (None, upright):
            message = f"{path} was written with the other value; give that"
            message += ", or another dataloader.folder for files of this one"
            raise UserError(Problem(message, "dataset.exif_orientation", upright))
        return found

    def small_path(self) -> Path | None:
        """Where the small training pictures are, if there are to be any: a file as any other of those values.

        Raises:
            UserError: they would not be smaller, or no folder is given.
        """
        values = small_values(self.loader.files)
        return self._written("train", values) if values else None

    def open_small(self, full: Beton) -> Beton | None:
        """The small pictures of the training pictures in `full`, if there are to be any.

        Raises:
            UserError: the file is not there, not whole, or of other pictures.
        """
        if (path := self.small_path()) is None:
            return None
        small = self._open(path, _SMALL_SIDE)
        if not np.array_equal(small.rows["f1"], full.rows["f1"]):
            message = f"{path} holds other pictures than {full.path}; remove it, and write it again by train prepare"
            raise UserError(Problem(message, _SMALL_SIDE, self.loader.files.small_side))
        return small

    def _given(self, split: str) -> str | None:
        return self.loader.train if split == "train" else self.loader.val

    def _written(self, split: str, values: FFCVFile) -> Path:
        """Where `train prepare` writes a split with those values."""
        share = self.dataset.val_split
        drawn = f"-val{100 * share:g}-seed{self.seed}" if share is not None else ""
        return self._folder() / file_name(split, values, drawn)

    def _folder(self) -> Path:
        if self.loader.folder is not None:
            return Path(self.loader.folder)
        if self.dataset.kind == "shapes":
            return shapes_folder(self.dataset) / FFCV
        message = "is not given; say where the FFCV files are (dataloader.folder), or the pictures (dataset.path)"
        if self.dataset.path is not None:
            if not only_prepared(self.dataset.path):
                return Path(self.dataset.path) / FFCV
            message = f"is not given, and {self.dataset.path} has no room for FFCV files; give a folder for them"
        raise UserError(Problem(message, "dataloader.folder", None))

    def _open(self, path: Path, key: str) -> Beton:
        if not path.is_file():
            raise UserError(Problem(f"{path.name} is not there; write it by: {self._command()}", key, path.parent))
        return open_beton(path, key)

    def _command(self) -> str:
        """What writes the files."""
        dataset, folder = self.dataset, self.loader.folder
        source = dataset.path or ("/data/pictures" if dataset.kind == "folder" else None)
        words = f"train prepare dataset={dataset.name}" + (f" dataset.path={source}" if source else "")
        words += f" dataset.val_split={dataset.val_split} seed={self.seed}" if dataset.val_split is not None else ""
        words += "" if dataset.exif_orientation else " dataset.exif_orientation=false"
        words += f" dataloader.folder={folder}" if folder else ""
        usual = read_mapping(paths.CONF / "dataloader" / "ffcv.yaml")["files"]
        changed = {name: value for name, value in asdict(self.loader.files).items() if value != usual[name]}
        return words + "".join(f" dataloader.files.{name}={value}" for name, value in changed.items())


def full_values(files: FFCVFiles) -> FFCVFile:
    """What the files of full pictures are written with."""
    return FFCVFile(files.max_side, files.jpeg_share, files.quality, files.restart_interval)


def small_values(files: FFCVFiles) -> FFCVFile | None:
    """What the file of small training pictures is written with, if there is to be one.

    Raises:
        UserError: they would not be smaller.
    """
    if files.small_side is None:
        return None
    if files.small_side >= files.max_side:
        message = f"must be less than dataloader.files.max_side ({files.max_side}), half of it for instance"
        raise UserError(Problem(message, _SMALL_SIDE, files.small_side))
    return FFCVFile(files.small_side, files.small_jpeg_share, files.quality, files.restart_interval)


def file_name(split: str, files: FFCVFile, drawn: str = "") -> str:
    """Such as train-500px-jpeg50-q90.beton; `drawn` tells how pictures were set apart for validation."""
    restart = f"-restart{files.restart_interval}" if files.restart_interval else ""
    return f"{split}-{files.max_side}px-jpeg{100 * files.jpeg_share:g}-q{files.quality}{restart}{drawn}{SUFFIX}"


def open_beton(path: Path, key: str = "dataloader.folder") -> Beton:
    """Check the outside of an FFCV file; `key` is named where it is wrong.

    Raises:
        UserError: it is cut off, unfinished, changed since it was written, or no such file.
    """
    try:
        return _open(path)
    except ValueError as wrong:
        raise UserError(Problem(f"{path} {wrong}", key, path)) from None
    except OSError as error:
        raise UserError(Problem(f"{path} cannot be read ({error.strerror})", key, path)) from None


def _open(path: Path) -> Beton:
    size = path.stat().st_size
    foreign = f"is no FFCV file of version {VERSION}; name the .beton file that train prepare or FFCV wrote"
    if size < HEADER.itemsize:
        raise ValueError(foreign)
    header = np.fromfile(path, HEADER, 1)[0]
    if header["version"] != VERSION or not 0 < header["fields"] <= _MOST_FIELDS or not _power_of_two(header):
        raise ValueError(foreign)
    if not header["table"]:
        raise ValueError("was never finished; write it again by train prepare")
    _check_fields(path, int(header["fields"]))
    samples, table = int(header["samples"]), int(header["table"])
    if not samples:
        raise ValueError("holds no pictures; write it again by train prepare")
    pieces, rest = divmod(size - table, ALLOCATION.itemsize)
    manifest = read_manifest(path)
    if rest or pieces < samples or (manifest is not None and manifest.bytes != size):
        expected = f", of which its manifest says {manifest.bytes:,}" if manifest else ""
        raise ValueError(f"is cut off or changed: it has {size:,} bytes{expected}; write it again by train prepare")
    if manifest is not None and manifest.samples != samples:
        raise ValueError(f"has {samples:,} pictures, {manifest_path(path).name} says {manifest.samples:,}")
    if wrong := _wrong_row(path, samples, table, len(manifest.classes) if manifest else _MOST_CLASSES):
        raise ValueError(f"{wrong}; write it again by train prepare")
    return Beton(path, samples, size, manifest)


def _wrong_row(path: Path, samples: int, table: int, classes: int) -> str | None:
    """What a row says that cannot be: FFCV's compiled code believes it, and would read and write beside the file."""
    rows, pieces = np.fromfile(path, ROW, samples, offset=ROWS_START), np.fromfile(path, ALLOCATION, offset=table)
    if ROWS_START + samples * ROW.itemsize > table:
        return "has no room for its rows"
    pieces = pieces[np.argsort(pieces["place"])]
    if (pieces["size"] > table).any() or (pieces["place"] > table - pieces["size"]).any():
        return "has pictures that end behind its end"
    pictures, labels = rows["f0"], rows["f1"]
    held = pieces[np.minimum(np.searchsorted(pieces["place"], pictures["place"]), len(pieces) - 1)]
    pixels = pictures["width"].astype(np.uint64) * pictures["height"]
    fits = (pictures["mode"] == JPEG) | ((pictures["mode"] == PIXELS) & (held["size"] == 3 * pixels))
    if not (fits & (held["place"] == pictures["place"]) & (pixels > 0) & (pixels <= _MOST_PIXELS)).all():
        return "has pictures of another size than is stored"
    return None if ((labels >= 0) & (labels < classes)).all() else f"has labels outside of 0 to {classes - 1}"


def _power_of_two(header: np.void) -> bool:
    size = int(header["page_size"])
    return size > 0 and size & (size - 1) == 0


def _check_fields(path: Path, count: int) -> None:
    fields = np.fromfile(path, FIELD, count, offset=HEADER.itemsize)
    if len(fields) < count:
        raise ValueError("is cut off; write it again by train prepare")
    names = [field["name"].tobytes().split(b"\0")[0].decode("latin-1") for field in fields]
    kinds = [int(field["kind"]) for field in fields]
    if names != [IMAGE, LABEL] or kinds != [2, 1]:
        raise ValueError(
            f"holds the fields {', '.join(names)}; needed are {IMAGE} (an RGB image field) and {LABEL} (an integer)"
        )
