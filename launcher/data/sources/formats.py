"""List the images of one archive: tar, zip, Parquet and Arrow files; imports no torch."""

import importlib
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from launcher.config.schema import Columns
from launcher.data.folder import is_remote, problem
from launcher.data.listing import is_image
from launcher.data.sources.tar import BoundedReads, read_members
from launcher.errors import Problem, UserError, first_few

_ROWS = 256
_LOCAL_HEADER, _LENGTHS = 30, slice(26, 30)
_MOST_OF_A_CLASS = 1000
_MOST_OF_A_DIRECTORY, _MOST_OF_A_FILE = 1 << 30, 1 << 62  # bytes; a zip file of ten million files, and what int64 holds
NO_COLUMNS = Columns(None, None, None, "|")
# Column names that are tried in turn if none is set.
_IMAGE, _LABEL = ("image", "img", "path", "file_name", "file", "filename"), ("label", "labels", "class", "target")
_USUAL = {"image": _IMAGE, "label": _LABEL}


@dataclass(frozen=True)
class Listing:
    """The images of one archive: names, classes (None: the folder), and places [start, bytes, compressed bytes or 0].

    `order` are the names of all classes, where the archive contains them. Names of a table's rows may be equal.
    """

    names: list[str] = field(default_factory=list)
    classes: list[str | None] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    is_table: bool = False

    def add(self, name: str, label: str | None, start: int, size: int, deflated: int = 0) -> None:
        """Add an image."""
        self.names.append(name)
        self.classes.append(label)
        self.places.append((start, size, deflated))


def class_name(label: object) -> str:
    """Return the name of a class; numbers get four digits, so that they sort by value."""
    text = str(label).strip()
    return text.zfill(4) if text.isdecimal() else text


def label_text(values: Sequence[object], columns: Columns) -> str:
    """Return the text of a label from the values of its columns; several, and those of a list, are joined."""
    if len(values) == 1 and not isinstance(values[0], list):
        return "" if values[0] is None else class_name(values[0])
    parts = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return columns.separator.join("" if one is None else class_name(one) for one in parts)


def label_columns(names: Sequence[str], columns: Columns, where: str) -> list[str]:
    """Return the columns of the labels of a table; raises as `column_of`."""
    several = columns.label if isinstance(columns.label, list) else [columns.label]
    return [column_of(names, "label", replace(columns, label=one), where) for one in several]


def column_of(names: Sequence[str], what: str, columns: Columns, where: str) -> str:
    """Return the column of the images or labels of a table.

    Raises UserError if it does not exist.
    """
    wanted = getattr(columns, what)
    name = next((name for name in ([wanted] if wanted else _USUAL[what]) if name in names), None)
    if name is None:
        message = f"{where} has no such column; its columns are {first_few(names)}; set one of them"
        raise UserError(Problem(message, f"dataset.columns.{what}", wanted))
    return name


def list_tar(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List a tar file: of class folders, or with the class of NAME.jpg in NAME.cls, as WebDataset writes."""
    images, labels = [], {}
    for member in read_members(file, archive):
        path = PurePosixPath(member.name)
        key = str(path.parent / path.name.partition(".")[0])
        assert member.size is not None
        if path.suffix == ".cls" and member.size <= _MOST_OF_A_CLASS:
            file.seek(member.start)
            labels[key] = class_name(file.read(member.size).decode(errors="replace"))
        elif is_image(path.name):
            images.append((key, member))
    listing = Listing()
    for key, member in images:
        if labels and key not in labels:
            raise problem(archive, f"{member.name} has no class; add {PurePosixPath(key).name}.cls, or remove it")
        listing.add(member.name, labels.get(key), member.start, member.size or 0)
    return listing


def list_zip(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List a zip file of class folders."""
    listing = Listing()
    try:
        with zipfile.ZipFile(BoundedReads(file, _MOST_OF_A_DIRECTORY)) as opened:
            members = [one for one in opened.infolist() if is_image(PurePosixPath(one.filename).name)]
    except zipfile.BadZipFile as error:
        raise problem(archive, f"is not a complete zip file ({error}); download it again") from None
    end = file.seek(0, io.SEEK_END)
    for member in members:
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise problem(archive, f"{member.filename} is encrypted, or not deflated; write another zip file")
        # note: the lengths of name and extra field are those beside the image, which may differ from the directory's
        file.seek(member.header_offset)
        lengths = np.frombuffer(file.read(_LOCAL_HEADER)[_LENGTHS], "<u2")
        start = member.header_offset + _LOCAL_HEADER + int(lengths.sum())
        deflated = member.compress_size if member.compress_type == zipfile.ZIP_DEFLATED else 0
        if start + member.compress_size > end or member.file_size >= _MOST_OF_A_FILE:
            raise problem(archive, f"states a wrong place or length of {member.filename}; download it again")
        listing.add(member.filename, None, start, member.file_size, deflated)
    return listing


def list_parquet(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List the rows of a Parquet file as Hugging Face's data sets have it; places are those of `parquet_bytes`."""
    table = _pyarrow("pyarrow.parquet", archive).ParquetFile(file)
    listing, start = Listing(is_table=True), 0
    image, labels, classes = _chosen(table.schema_arrow, archive, columns)
    add = partial(_add_rows, listing, columns, labels, classes)
    for batch in table.iter_batches(_ROWS, columns=[image, *labels]):
        sizes = np.diff(_offsets(batch.column(image)))
        add(batch, batch.column(image), start + np.cumsum(sizes) - sizes, sizes)
        start += int(sizes.sum())
    return listing


def parquet_bytes(file: BinaryIO, archive: str) -> Iterator[bytes]:
    """Yield the bytes of all images of a Parquet file, joined, in the order of its rows."""
    table = _pyarrow("pyarrow.parquet", archive).ParquetFile(file)
    image = column_of(table.schema_arrow.names, "image", NO_COLUMNS, archive)
    for batch in table.iter_batches(_ROWS, columns=[image]):
        column = batch.column(image)
        offsets = _offsets(column)
        yield memoryview(_bytes(column).buffers()[2] or b"")[offsets[0] : offsets[-1]].tobytes()


def list_arrow(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List the rows of an Arrow file, as `datasets` caches them; the images are read in place."""
    if is_remote(archive):
        raise problem(archive, "Arrow files are read on this machine only; copy it, or set a folder of Parquet files")
    pyarrow = _pyarrow("pyarrow", archive)
    whole = pyarrow.memory_map(archive).read_buffer()
    ipc = _pyarrow("pyarrow.ipc", archive)
    is_file = whole[:6].to_pybytes() == b"ARROW1"
    reader = (ipc.open_file if is_file else ipc.open_stream)(pyarrow.BufferReader(whole))
    image, labels, classes = _chosen(reader.schema, archive, columns)
    listing = Listing(is_table=True)
    add = partial(_add_rows, listing, columns, labels, classes)
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    for batch in batches:
        offsets = _offsets(batch.column(image))
        start = _bytes(batch.column(image)).buffers()[2].address - whole.address
        if not 0 <= start < whole.size:
            raise problem(archive, "is compressed, so single images cannot be read from it; write it without")
        add(batch, batch.column(image), start + offsets[:-1], np.diff(offsets))
    return listing


def _pyarrow(module: str, archive: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        message = "needs the package pyarrow, which is not installed; type pip install pyarrow"
        raise problem(archive, message) from None


def _chosen(schema: Any, archive: str, columns: Columns) -> tuple[str, list[str], list[str]]:
    """Return the columns of images and labels, and the names of the classes if the schema has them."""
    image, labels = column_of(schema.names, "image", columns, archive), label_columns(schema.names, columns, archive)
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    feature = features.get(labels[0], {})
    # note: those of a list are one level deeper
    return image, labels, feature.get("names") or feature.get("feature", {}).get("names") or []


def _bytes(images: Any) -> Any:
    """Return the array of the bytes of images."""
    return images.field("bytes") if hasattr(images, "field") else images


def _offsets(images: Any) -> np.ndarray:
    """Return where the bytes of each image start in their buffer, and where the last ends, int64 [N + 1]."""
    array = _bytes(images)
    width = np.int64 if str(array.type).startswith("large") else np.int32
    offsets = np.frombuffer(array.buffers()[1], width)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _add_rows(
    listing: Listing,
    columns: Columns,
    labels: list[str],
    classes: list[str],
    batch: Any,
    images: Any,
    starts: np.ndarray,
    sizes: np.ndarray,
) -> None:
    paths = images.field("path").to_pylist() if "path" in str(images.type) else [None] * len(images)
    values = zip(*(batch.column(label).to_pylist() for label in labels), strict=True)
    for path, row, start, size in zip(paths, values, starts.tolist(), sizes.tolist(), strict=True):
        name = path or f"{len(listing.names):06d}"
        for one in (one for value in row for one in (value if isinstance(value, list) else [value])):
            if not isinstance(one, int | float | str) or (classes and isinstance(one, int) and one < 0):
                message = f"{name} has the label {one}, which is no class; remove such rows"
                raise UserError(Problem(f"{message} or set dataset.columns.label", "dataset.columns.label", None))
        names = [_named(value, classes) for value in row]
        listing.add(name, label_text(names, columns), start, size)
    # note: lists have other texts than their classes
    listing.order[:] = classes if {*classes}.issuperset(map(str, listing.classes)) else []


def _named(value: Any, classes: list[str]) -> Any:
    """Return a label or a list of them with the names of classes, if there are any."""
    if isinstance(value, list):
        return [_named(one, classes) for one in value]
    return classes[value] if classes and isinstance(value, int) else value
