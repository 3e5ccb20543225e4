"""List the rows of Parquet and Arrow files, as Hugging Face's data sets have them; imports no torch."""

import importlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from launcher.config.schema import Columns
from launcher.data.class_names import class_name
from launcher.data.sources.formats import Listing, column_of, label_columns, label_text, no_class
from launcher.data.sources.layout import is_remote, problem
from launcher.errors import Problem, UserError
from launcher.installation import how_to_add

_ROWS = 256


def list_parquet(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List the rows of a Parquet file; places are those of `parquet_bytes`.

    Raises UserError if a column is missing or of another kind, or a row has no image or a label that is none.
    """
    table = pyarrow_module("pyarrow.parquet", archive).ParquetFile(file)
    rows, start = _Rows(table.schema_arrow, archive, columns), 0
    for batch in table.iter_batches(_ROWS, columns=list(dict.fromkeys([rows.image, *rows.labels]))):
        sizes = np.diff(_offsets(batch.column(rows.image)))
        rows.add(batch, start + np.cumsum(sizes) - sizes, sizes)
        start += int(sizes.sum())
    return rows.all()


def parquet_bytes(file: BinaryIO, archive: str, image: str) -> Iterator[bytes]:
    """Yield the bytes of all images of a Parquet file's column, joined, in the order of its rows."""
    for batch in pyarrow_module("pyarrow.parquet", archive).ParquetFile(file).iter_batches(_ROWS, columns=[image]):
        yield b"".join(_bytes(batch.column(image)).to_pylist())


def list_arrow(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List the rows of an Arrow file, as `datasets` caches and saves them; the images are read in place.

    Raises UserError as `list_parquet`, and if the file is compressed or in a bucket.
    """
    if is_remote(archive):
        raise problem(archive, "Arrow files are read on this machine only; copy it, or set a folder of Parquet files")
    pyarrow, ipc = pyarrow_module("pyarrow", archive), pyarrow_module("pyarrow.ipc", archive)
    whole = pyarrow.memory_map(archive).read_buffer()
    is_file = whole[:6].to_pybytes() == b"ARROW1"
    reader = (ipc.open_file if is_file else ipc.open_stream)(pyarrow.BufferReader(whole))
    rows = _Rows(reader.schema, archive, columns)
    for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
        if not len(batch):
            continue
        offsets = _offsets(batch.column(rows.image))
        start = _bytes(batch.column(rows.image)).buffers()[2].address - whole.address
        if not 0 <= start < whole.size:
            raise problem(archive, "is compressed, so single images cannot be read from it; write it without")
        rows.add(batch, start + offsets[:-1], np.diff(offsets))
    return rows.all()


def pyarrow_module(module: str, archive: str) -> Any:
    """Import a module of pyarrow; raises UserError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        message = f"needs the package pyarrow, which is not installed; run {how_to_add('pyarrow')}"
        raise problem(archive, message) from None


class _Rows:
    """The rows of a file: the columns of images, and of labels with the names of their classes, if there are any."""

    def __init__(self, schema: Any, archive: str, columns: Columns):
        """Read the schema; raises UserError if a column is missing, or that of images has none."""
        self.archive, self.columns = archive, columns
        self.image = column_of(schema.names, "image", columns.image, archive)
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        self.labels = {one: _names(features.get(one)) for one in label_columns(schema.names, columns, archive)}
        self.listing = Listing(image=self.image, is_table=True)
        kind = schema.field(self.image).type
        types = importlib.import_module("pyarrow.types")
        field = kind.field("bytes").type if "bytes" in _fields(kind) else kind
        if not (types.is_binary(field) or types.is_large_binary(field)):
            message = f"{archive} has no images in this column, which is of type {kind}; set the column of their bytes"
            raise UserError(
                Problem(f"{message}, or write paths of images as a table (.csv)", "dataset.columns.image", self.image)
            )

    def add(self, batch: Any, starts: np.ndarray, sizes: np.ndarray) -> None:
        """Add the rows of a batch, whose images have these places.

        Raises UserError if a row has no image, or a label that is none.
        """
        images, listing = batch.column(self.image), self.listing
        paths = images.field("path").to_pylist() if "path" in _fields(images.type) else [None] * len(images)
        if (missing := [*images.is_null().to_pylist(), *_bytes(images).is_null().to_pylist()]) and any(missing):
            row = missing.index(True) % len(images)
            message = f"row {len(listing.names) + row + 1} has no bytes in {self.image}"
            message += f", only the path {paths[row]}" if paths[row] else ""
            raise problem(self.archive, f"{message}; save the data set with its images in it, or remove the row")
        values = zip(*(batch.column(label).to_pylist() for label in self.labels), strict=True)
        for path, cells, start, size in zip(paths, values, starts.tolist(), sizes.tolist(), strict=True):
            number = len(listing.names)
            where = f"{self.archive}: row {number + 1}{f' ({path})' * bool(path)}"
            pairs = zip(cells, self.labels.values(), strict=True)
            named = [self._named(value, names, where) for value, names in pairs]
            listing.add(path or f"{number:06d}", label_text(named, self.columns, where), start, size)

    def all(self) -> Listing:
        """Return the listed rows, with the order of the classes; lists of labels have other texts."""
        names = [*map(class_name, next(iter(self.labels.values())))]
        self.listing.order[:] = names if {*names, ""}.issuperset(self.listing.classes) else []
        return self.listing

    def _named(self, value: Any, names: Sequence[str], where: str) -> Any:
        """Return a label, or a list of them, by the names of its column's classes if there are any."""
        if isinstance(value, list):
            return [self._named(one, names, where) for one in value]
        if not names or value is None or isinstance(value, str) or (isinstance(value, float) and math.isnan(value)):
            return value
        if isinstance(value, int) and 0 <= value < len(names):
            return names[value]
        raise no_class(where, value, self.columns)


def _names(feature: Any) -> list[str]:
    """Return the names of the classes of a ClassLabel, or of a list of them, which has several forms."""
    while isinstance(feature, list) or "feature" in (feature or {}):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return (feature or {}).get("names") or []


def _fields(kind: Any) -> Sequence[str]:
    return [field.name for field in kind] if str(kind).startswith("struct") else []


def _bytes(images: Any) -> Any:
    """Return the array of the bytes of images."""
    return images.field("bytes") if "bytes" in _fields(images.type) else images


def _offsets(images: Any) -> np.ndarray:
    """Return where the bytes of each image start in their buffer, and where the last ends, int64 [N + 1]."""
    array = _bytes(images)
    width = np.int64 if str(array.type).startswith("large") else np.int32
    offsets = np.frombuffer(array.buffers()[1], width)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
