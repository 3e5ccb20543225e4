"""The images of a split as columns, wherever their bytes are; in a run's folder each column is a file, which ranks map.

Imports no torch.
"""

import json
import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np

from launcher.data.dropped import UNREADABLE, Dropped, drops_of
from launcher.data.listing import unreadable_path
from launcher.data.sources.layout import problem
from launcher.data.workers import in_threads
from launcher.files import atomic

# note: larger than any image that can be decoded; a malicious file must not fill the memory
MOST_BYTES = 1 << 30
_TABLE = "index.json"
_FILES_A_TASK = 1000
_TEXTS, _ARRAYS = ("names", "paths", "masks", "groups"), ("labels", "places")


@dataclass(frozen=True, slots=True)
class Piece:
    """An image named `name`: bytes [start, start + size) of a file, or up to its end if `size` is None.

    `deflated` are the compressed bytes from `start` on, 0 if it is stored as it is. A file with a `version` is read
    through a copy on this machine, another URL from there; that of a table has the images of a `column`.
    """

    name: str
    file: str
    start: int = 0
    size: int | None = None
    deflated: int = 0
    version: str = ""
    column: str = ""

    def __str__(self) -> str:
        return self.file if self.size is None or self.file.endswith(self.name) else f"{self.name} in {self.file}"


class Archive(NamedTuple):
    """A file with many images, in a `column` if it is a table, or a bucket's folder of them, which ends with a slash.

    With a `version` it is read through a copy on this machine.
    """

    file: str
    version: str = ""
    column: str = ""


class Texts(Sequence[str]):
    """Texts in one array of bytes, since each of millions of Python's takes 50 bytes more."""

    def __init__(self, texts: Iterable[str] = ()):
        content, ends = bytearray(), array("q", [0])
        for text in texts:
            # note: texts of JSON may have halves of surrogate pairs
            content += text.encode(errors="surrogatepass")
            ends.append(len(content))
        self.content, self.ends = np.frombuffer(content, np.uint8), np.frombuffer(ends, np.int64)

    @classmethod
    def of(cls, content: np.ndarray, ends: np.ndarray) -> Self:
        """Return the texts of all bytes, uint8, with the places before the first text and after each, int64 [N + 1]."""
        texts = cls.__new__(cls)
        texts.content, texts.ends = content, ends
        return texts

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        """Return a text by its number."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.content[self.ends[number] : self.ends[number + 1]].tobytes().decode(errors="surrogatepass")

    def __iter__(self) -> Iterator[str]:
        content, start = self.content.tobytes(), 0
        for end in self.ends[1:].tolist():
            yield content[start:end].decode(errors="surrogatepass")
            start = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def part(self, numbers: np.ndarray) -> "Texts":
        """Select the texts of these numbers."""
        return Texts(map(self.__getitem__, numbers.tolist()))


@dataclass(frozen=True)
class Images:
    """The images of one split in the order of their names; `labels` int64 [N], `root` is the path in messages.

    Names are CLASS/NAME, where the files are below `root` unless they have `places`, int64 [N, 4]: archive, first byte,
    bytes (-1: unknown), and compressed bytes or 0; or `paths`. `masks` are files too. `groups` are values of the column
    `dataset.groups` of a table. `place` is the prefix of `root` within the data set's folder, ending in a slash, or
    empty. Of `seen` files or rows, those that are `dropped` have a reason.
    """

    split: str
    root: str
    classes: list[str]
    names: Texts
    labels: np.ndarray
    places: np.ndarray | None = None
    archives: Sequence[Archive] = ()
    paths: Texts | None = None
    masks: Texts | None = None
    groups: Texts | None = None
    place: str = ""
    seen: int = 0
    dropped: Mapping[str, Dropped] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # note: a worker process maps what was read, too
        folder = vars(self).get("_folder")
        return (Images.read, (folder, self.split)) if folder else super().__reduce_ex__(protocol)

    @property
    def are_class_folders(self) -> bool:
        """Return whether the images are files below `root`."""
        return self.places is None and self.paths is None

    @property
    def are_in_bucket(self) -> bool:
        """Return whether the images are files in the folder of a bucket."""
        return any(one.file.endswith("/") for one in self.archives)

    @property
    def are_copied(self) -> bool:
        """Return whether the images are in archives that are read through copies on this machine."""
        return any(one.version for one in self.archives)

    def piece(self, number: int) -> Piece:
        """Return where an image is."""
        name = self.names[number]
        if self.places is None:
            return Piece(name, f"{self.root}/{name}" if self.paths is None else self.paths[number])
        archive, start, size, deflated = self.places[number].tolist()
        file, version, column = self.archives[archive]
        file += name * file.endswith("/")
        return Piece(name, file, start, None if size < 0 else size, deflated, version, column)

    def pieces(self) -> list[Piece]:
        """Return where each image is."""
        return [self.piece(number) for number in range(len(self))]

    def size(self, number: int) -> int | None:
        """Return the bytes of an image, None if unknown; raises OSError if it no longer exists."""
        piece = self.piece(number)
        return piece.size if self.places is not None else os.stat(piece.file).st_size  # noqa: PTH116 - of a million files

    def sizes(self) -> Sequence[int | None]:
        """Return the bytes of each image, None if unknown; raises UserError if an image no longer exists."""
        if self.places is not None:
            return [None if size < 0 else size for size in self.places[:, 2].tolist()]
        try:
            return [*in_threads(self.size, range(len(self)), _FILES_A_TASK)]
        except OSError as error:
            raise problem(self.root.removesuffix(f"/{self.place.rstrip('/')}"), unreadable_path(error)) from None

    def missing_files(self) -> list[str]:
        """Return the files of images that do not exist."""

        def missing(number: int) -> str:
            file = self.piece(number).file
            return "" if os.path.exists(file) else file  # noqa: PTH110 - of a million files

        return [*filter(None, in_threads(missing, range(len(self)), _FILES_A_TASK))]

    def without(self, skipped: Collection[str]) -> Self:
        """Remove images, given relative to the data set's folder; classes stay."""
        if not skipped:
            return self
        kept = np.array([f"{self.place}{file}" not in skipped for file in self.names])
        bad = [self.names[number] for number in np.flatnonzero(~kept).tolist()]
        return replace(self.part(kept), dropped={**self.dropped, **drops_of({UNREADABLE: bad})})

    def part(self, chosen: np.ndarray) -> Self:
        """Select images: those where `chosen`, bool [N], is true, or those of these numbers, in order; classes stay."""
        numbers = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        columns = {name: column for name in (*_TEXTS, *_ARRAYS) if (column := getattr(self, name)) is not None}
        selected = {name: one.part(numbers) if name in _TEXTS else one[numbers] for name, one in columns.items()}
        return replace(self, **selected)

    def facts(self) -> dict[str, object]:
        """Return how many files or rows were seen, taken and dropped, and why."""
        dropped = [{"reason": why, "count": one.rows, "example": one.example} for why, one in self.dropped.items()]
        return {"seen": self.seen, "taken": len(self.names), "dropped": dropped}

    @classmethod
    def read(cls, folder: Path, split: str) -> Self:
        """Map the images of a split that `write_index` wrote."""
        facts = _table(folder)[split]
        arrays = {name: _mapped(folder / f"{split}.{name}.npy") for name in facts.pop("arrays")}
        facts |= {name: arrays[name] for name in _ARRAYS if name in arrays}
        facts |= {name: Texts.of(arrays[name], arrays[f"{name}_ends"]) for name in _TEXTS if name in arrays}
        facts["archives"] = [Archive(*one) for one in facts["archives"]]
        facts["dropped"] = {why: Dropped(*one) for why, one in facts["dropped"].items()}
        images = cls(**facts)
        # note: not a field, since images that are made of these differ from the files
        vars(images)["_folder"] = folder
        return images


def write_index(folder: Path, splits: Sequence[Images]) -> None:
    """Write the images of splits into a folder, each file atomically, the table last."""
    folder.mkdir(exist_ok=True)
    table = {}
    for images in splits:
        facts = {one.name: getattr(images, one.name) for one in fields(images)}
        arrays: dict[str, np.ndarray] = {}
        for name in (*_TEXTS, *_ARRAYS):
            column = facts.pop(name)
            if isinstance(column, Texts):
                arrays |= {name: column.content, f"{name}_ends": column.ends}
            elif column is not None:
                arrays[name] = column
        for name, one in arrays.items():
            with atomic.writing(folder / f"{images.split}.{name}.npy") as path, path.open("wb") as file:
                np.save(file, one, allow_pickle=False)
        table[images.split] = {**facts, "arrays": [*arrays]}
    atomic.write_text(folder / _TABLE, json.dumps(table))


def read_index(folder: Path) -> dict[str, Images]:
    """Map the images of the splits by name; empty without an index, or with that of an earlier version."""
    return {split: Images.read(folder, split) for split, facts in _table(folder).items() if "arrays" in facts}


def _table(folder: Path) -> dict[str, Any]:
    file = folder / _TABLE
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _mapped(path: Path) -> np.ndarray:
    # note: results of calculations with a memmap would be memmaps
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
