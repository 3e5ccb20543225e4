"""The index of a run's images in its folder: listed once, before the ranks start, which map its files; no torch."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launcher import atomic
from launcher.data.dropped import Dropped
from launcher.data.sources.pieces import Archive, Listed, Packed, Paired, Paths, Remote, Stored
from launcher.data.split import Split

_TABLE = "index.json"


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


def write_index(folder: Path, splits: Sequence[Split]) -> None:
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


def read_index(folder: Path) -> dict[str, Split]:
    """Return the images of the splits by name; empty without an index."""
    if not (folder / _TABLE).is_file():
        return {}
    table = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
    return {split: _restored(facts, f"{folder}/{split}.") for split, facts in table.items()}


def _described(split: Split) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a split, and its values for JSON."""
    arrays = {"labels": np.asarray(split.labels), **_of_paths("files", Paths(map(os.fsdecode, split.files)))}
    facts: dict[str, Any] = {
        **{name: getattr(split, name) for name in ("root", "split", "classes", "place", "seen")},
        "dropped": {why: list(one) for why, one in split.dropped.items()},
        "stored": type(split.stored).__name__ if split.stored else None,
    }
    for name, value in vars(split.stored).items() if split.stored else ():
        if isinstance(value, Paths):
            arrays |= _of_paths(name, value)
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            facts[name] = value
    return arrays, facts


def _of_paths(name: str, paths: Paths) -> dict[str, np.ndarray]:
    return {name: paths.text, f"{name}_ends": paths.ends}


def _restored(facts: dict[str, Any], prefix: str) -> Split:
    def array(name: str) -> np.ndarray:
        return _mapped(f"{prefix}{name}.npy")

    def paths(name: str) -> Paths:
        return Paths.of(array(name), array(f"{name}_ends"))

    stored: Stored | None = None
    match facts.pop("stored"):
        case "Packed":
            stored = Packed([Archive(*one) for one in facts.pop("archives")], array("places"))
        case "Listed":
            stored = Listed(paths("paths"))
        case "Paired":
            stored = Paired(paths("paths"), paths("masks"))
        case "Remote":
            stored = Remote(facts.pop("url"), array("sizes"))
    facts["dropped"] = {why: Dropped(*one) for why, one in facts["dropped"].items()}
    return Split(**facts, files=paths("files"), labels=array("labels"), stored=stored)
