"""Find the images of CIFAR-10 and CIFAR-100 in the files that they come as; imports no torch.

These are rows of label and pixels, or Python's pickles of both (Krizhevsky 2009, cs.toronto.edu/~kriz/cifar.html). They
are read through a copy on this machine, in which each image is a PPM file.
"""

import io
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from launcher.counts import count_of
from launcher.data.listing import is_file, is_folder
from launcher.data.sources.arrange import Rows
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.layout import Wanted, is_remote, problem, readable, split_of_wanted
from launcher.data.sources.pieces import Archive, Packed
from launcher.data.sources.source import Files
from launcher.data.split import Split
from launcher.errors import first_few

_EDGE = 32
_VALUES = 3 * _EDGE * _EDGE
_HEAD = f"P6 {_EDGE} {_EDGE} 255\n".encode()
_MOST_BYTES = 1 << 30
_CHUNK = 1 << 20
_AGAIN = "download it again"


@dataclass(frozen=True)
class _Form:
    """A folder of files and the archive of it; the label is the last of `labels` bytes, or a key of the pickles."""

    folder: str
    archive: str
    names: str
    train: tuple[str, ...]
    val: str
    label: int | bytes
    key_of_names: bytes = b""

    def files(self, split: str) -> tuple[str, ...]:
        return self.train if split == "train" else (self.val,)


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_FORMS = (
    _Form(
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        names="batches.meta.txt",
        train=tuple(f"{name}.bin" for name in _BATCHES),
        val="test_batch.bin",
        label=1,
    ),
    _Form(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        names="batches.meta",
        train=_BATCHES,
        val="test_batch",
        label=b"labels",
        key_of_names=b"label_names",
    ),
    _Form(
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        names="fine_label_names.txt",
        train=("train.bin",),
        val="test.bin",
        label=2,
    ),
    _Form(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        names="meta",
        train=("train",),
        val="test",
        label=b"fine_labels",
        key_of_names=b"fine_label_names",
    ),
)


def cifar_path(path: str) -> str | None:
    """Return the folder or archive of CIFAR's files that a data set's path is, or holds; None if there is none.

    Raises UserError if it holds several.
    """
    if is_remote(path):
        return None
    if _form_of(path) is not None:
        return path
    for names in ([form.folder for form in _FORMS], [form.archive for form in _FORMS]):
        inside = [str(Path(path, name)) for name in names if _form_of(str(Path(path, name))) is not None]
        if len(inside) > 1:
            raise problem(path, f"holds {first_few(inside)}; set one of them")
        if inside:
            return inside[0]
    return None


def cifar_source(path: str, wanted: Wanted, options: SourceOptions) -> Split:
    """Find the images of a split in a folder or archive of CIFAR's files; classes are in their order.

    Raises UserError if a file is missing or damaged.
    """
    split, version = split_of_wanted(wanted), Files(path).version(path)
    names, labels, _ = _read(path, split)
    rows, size = Rows(wanted), len(_HEAD) + _VALUES
    for number, label in enumerate(labels.tolist()):
        options.check_label(names[label], path, f"image {number}")
        rows.add(names[label], f"{names[label]}/{number:05d}.ppm", (0, number * size, size, 0))
    return rows.folder(path, names, lambda places: Packed([Archive(path, version, split)], places))


def cifar_bytes(path: str, split: str) -> Iterator[bytes]:
    """Yield the bytes of all images of a split as PPM files, joined, in the order of the rows."""
    _, labels, pixels = _read(path, split)
    heads = np.broadcast_to(np.frombuffer(_HEAD, np.uint8), (len(labels), len(_HEAD)))
    images = pixels.reshape(-1, 3, _EDGE * _EDGE).transpose(0, 2, 1).reshape(-1, _VALUES)
    yield np.concatenate([heads, images], axis=1).tobytes()


def _form_of(path: str) -> _Form | None:
    """Return the form of a folder, by its files, or of an archive, by its name."""
    for form in _FORMS:
        if is_folder(Path(path)):
            # note: a folder of classes may have a file of the name `meta` too
            if all(is_file(Path(path, name)) for name in (form.names, form.val)):
                return form
        elif PurePosixPath(path).name == form.archive and is_file(Path(path)):
            return form
    return None


def _read(path: str, split: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the names of the classes, labels int64 [N] and pixels uint8 [N, 3 * 32 * 32] of a split.

    Raises UserError if a file is missing or damaged.
    """
    form = _form_of(path)
    assert form is not None
    with readable(path, _AGAIN):
        wanted = (form.names, *form.files(split))
        contents = _members(path, wanted) if is_file(Path(path)) else _files(path, wanted)
        if missing := [name for name in wanted if name not in contents]:
            raise problem(path, f"has no {first_few(missing)}; {_AGAIN}")
        names = _names(form, contents.pop(form.names))
        parts = [_rows(form, content) for content in map(contents.__getitem__, form.files(split))]
        labels, pixels = (np.concatenate(column) for column in zip(*parts, strict=True))
        if labels.min() < 0 or labels.max() >= len(names):
            raise problem(path, f"has labels without a name in {form.names}; {_AGAIN}")
    return names, labels, pixels


def _files(path: str, wanted: tuple[str, ...]) -> dict[str, bytes]:
    files = {name: Path(path, name) for name in wanted if is_file(Path(path, name))}
    return {name: file.read_bytes() for name, file in files.items()}


def _members(path: str, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Return the contents of an archive's members with these names."""
    contents = {}
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name in wanted and member.size <= _MOST_BYTES and (file := tar.extractfile(member)) is not None:
                contents[name] = file.read()
        # note: gzip compares its checksum at the end of the file, which tar does not reach
        while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
            pass
    return contents


def _names(form: _Form, content: bytes) -> list[str]:
    if form.key_of_names:
        return [name.decode() if isinstance(name, bytes) else str(name) for name in _plain(content, form.key_of_names)]
    return content.decode().split()


def _rows(form: _Form, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and pixels of a file; raises ValueError if there are none, or not as many of both."""
    if isinstance(form.label, bytes):
        labels, pixels = np.array(_plain(content, form.label), np.int64), _plain(content, b"data").pixels()
    else:
        rows = np.frombuffer(content, np.uint8).reshape(-1, form.label + _VALUES)
        labels, pixels = rows[:, form.label - 1].astype(np.int64), rows[:, form.label :]
    if not len(labels) == len(pixels) > 0:
        raise ValueError(f"a file has {count_of(len(labels), 'label')} and {count_of(len(pixels), 'image')}")
    return labels, pixels


class _Array:
    """The state of a pickled NumPy array; NumPy's own code gets none of it."""

    state: tuple[Any, ...]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def pixels(self) -> np.ndarray:
        _, shape, kind, is_column_major, data = self.state
        if kind.name not in (b"u1", "u1") or is_column_major:
            raise ValueError("pixels that are no rows of uint8")
        return np.frombuffer(data, np.uint8).reshape(shape[0], _VALUES)


class _Kind:
    """The name of a pickled NumPy data type."""

    def __init__(self, name: object, *_: object):
        self.name = name

    def __setstate__(self, state: object) -> None:
        return


class _Unpickler(pickle.Unpickler):
    """Unpickles lists, dictionaries, texts, bytes, numbers and arrays, and calls no other code."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return lambda *_: _Array()
            case "numpy", "ndarray":
                return _Array
            case "numpy", "dtype":
                return _Kind
            case "_codecs", "encode":  # note: how Python 3 writes bytes in the protocol of Python 2
                return lambda text, _: text.encode("latin-1")
        raise pickle.UnpicklingError(f"it would import {module}.{name}")


def _plain(content: bytes, key: bytes) -> Any:
    """Return a value of a pickled dictionary; its keys are bytes if Python 2 wrote it."""
    values = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    return values[key] if key in values else values[key.decode()]
