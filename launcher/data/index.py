"""The index of a run's images in its folder: listed once, before the ranks start, which map its files; no torch."""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from launcher import atomic
from launcher.data.dropped import Dropped
from launcher.data.folder import Folder
from launcher.data.sources.pieces import Archive, Listed, Packed, Paths, Remote, Stored

_TABLE = "index.json"
_UNKNOWN = -1  # bytes


class Mapped(np.memmap):
    """An array of a file: a process that it is sent to maps the file instead of copying it."""

    path: str | None = None

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Any:
        # note: results of calculations are in no file; without this, a maximum is an array and no scalar
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __reduce__(self) -> tuple[Any, ...]:
        # note: views have no path
        return (_mapped, (self.path,)) if self.path else np.asarray(self).__reduce__()  # type: ignore[return-value]


def _mapped(path: str) -> np.ndarray:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    # note: an empty file cannot be mapped
    if not isinstance(array, np.memmap):
        return np.asarray(array)
    mapped = array.view(Mapped)
    mapped.path = path
    return mapped


def write_index(folder: Path, splits: Sequence[Folder]) -> None:
    """Write the images of splits into a folder, each file atomically, the table last."""
    folder.mkdir(exist_ok=True)
    table = {}
    for split in splits:
        arrays, facts = _described(split)
        for name, array in arrays.items():
            with atomic.writing(folder / f"{split.split}.{name}.npy") as path, path.open("wb") as file:
                np.save(file, array, allow_pickle=False)
        table[split.split] = facts
    atomic.write_text(folder / _TABLE, json.dumps(table))


def read_index(folder: Path) -> dict[str, Folder]:
    """Return the images of the splits by name; empty without an index."""
    if not (folder / _TABLE).is_file():
        return {}
    table = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
    return {split: _restored(facts, partial(_array, folder, split)) for split, facts in table.items()}


def _array(folder: Path, split: str, name: str) -> np.ndarray:
    return _mapped(f"{folder}/{split}.{name}.npy")


def _described(split: Folder) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a split, and its values for JSON."""
    stored = split.stored
    arrays = {"labels": np.asarray(split.labels), **_of_paths("files", Paths(map(os.fsdecode, split.files)))}
    facts: dict[str, Any] = {
        **{name: getattr(split, name) for name in ("root", "split", "classes", "place", "seen")},
        "dropped": {why: list(one) for why, one in split.dropped.items()},
        "stored": type(stored).__name__ if stored else None,
    }
    if isinstance(stored, Packed):
        arrays["places"] = stored.places
        facts["archives"] = [list(one) for one in stored.archives]
    elif isinstance(stored, Listed):
        arrays |= _of_paths("paths", Paths(stored.paths[number] for number in stored.numbers.tolist()))
    elif isinstance(stored, Remote):
        arrays["sizes"] = np.array([_UNKNOWN if size is None else size for size in stored.sizes.tolist()], np.int64)
        facts["url"] = stored.url
    return arrays, facts


def _of_paths(name: str, paths: Paths) -> dict[str, np.ndarray]:
    return {name: paths.text, f"{name}_ends": paths.ends}


def _restored(facts: dict[str, Any], array: Callable[[str], np.ndarray]) -> Folder:
    dropped = {why: Dropped(*one) for why, one in facts.pop("dropped").items()}
    stored = _stored(facts.pop("stored"), facts.pop("archives", []), facts.pop("url", ""), array)
    files = Paths.of(array("files"), array("files_ends"))
    return Folder(**facts, files=files, labels=array("labels"), stored=stored, dropped=dropped)


def _stored(kind: str | None, archives: list[list[str]], url: str, array: Callable[[str], np.ndarray]) -> Stored | None:
    match kind:
        case "Packed":
            return Packed([Archive(*one) for one in archives], array("places"))
        case "Listed":
            paths = Paths.of(array("paths"), array("paths_ends"))
            return Listed(paths, np.arange(len(paths)))
        case "Remote":
            sizes = array("sizes")
            known = (
                sizes
                if (sizes != _UNKNOWN).all()
                else np.array([None if size == _UNKNOWN else size for size in sizes.tolist()])
            )
            return Remote(url, known)
    return None
