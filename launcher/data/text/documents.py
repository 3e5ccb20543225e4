"""Documents of text: files, lines of JSONL, rows of Parquet, or the source of Python's standard library; no torch."""

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from launcher import randomness
from launcher.config.builtin import BuiltInText, text_of
from launcher.config.schema import Dataset
from launcher.counts import count_of
from launcher.data.listing import is_ignored
from launcher.data.sources.layout import problem
from launcher.data.sources.parquet import pyarrow_module

_PIECE = 1 << 24
_ROWS = 256
_TABLES = (".jsonl", ".parquet")
_PLAIN = (".txt", ".md", ".text", ".py")
_COLUMNS = ("text", "content")
_SPLITS = {"train": ("train",), "val": ("val", "valid", "validation", "test")}


class Passage(NamedTuple):
    """A passage of a document in UTF-8. split: `train` or `val`. ends: whether the document ends with it.

    done: the bytes of the files that were read so far.
    """

    split: str
    text: bytes
    ends: bool
    done: int


@dataclass(frozen=True)
class TextFile:
    """A file of documents; `split` is None if each document draws its own."""

    path: Path
    name: str
    split: str | None
    size: int
    changed: int


def text_files(dataset: Dataset, *, whole: bool = False) -> list[TextFile]:
    """List the files of a data set's documents in the order of their names; `whole`: all are for validation.

    Folders or files named train and val (or valid, validation, test) are the splits; without them, or with
    `dataset.val_split`, each document draws one.

    Raises UserError if there are none, or no split for validation.
    """
    text = text_of(dataset.kind) if dataset.is_built_in else None
    root = text.root() if text else Path(dataset.path or "")
    files = [root] if root.is_file() else [*_below(root, text)]
    splits = {file: "val" if whole else _split_of(file.relative_to(root.parent).parts[1:][:1]) for file in files}
    if dataset.val_split is None and "val" not in splits.values():
        message = "has no text for validation, val.txt, val.jsonl or val/; add it, or set dataset.val_split=0.01"
        raise problem(str(root), message if files else "has no text: .txt, .jsonl or .parquet, or tokens in .bin")
    if dataset.val_split is not None:
        files, splits = [file for file in files if splits.get(file) != "val"] or files, {}
    listed = []
    for file in files:
        facts, name = file.stat(), file.name if file == root else file.relative_to(root).as_posix()
        if splits.get(file) or not splits:
            listed.append(TextFile(file, name, splits.get(file), facts.st_size, facts.st_mtime_ns))
    return listed


def pieces_of(files: list[TextFile], dataset: Dataset) -> Iterator[Passage]:
    """Yield the documents of files in order, in pieces.

    Raises UserError if a file cannot be read, or has no column of text.
    """
    number, done = 0, 0
    for file in files:
        for text, ends in _documents(file, dataset.columns.text):
            split = file.split or _drawn(number, dataset.val_split or 0.0)
            yield Passage(split, text, ends, done)
            number += ends
        done += file.size


def _drawn(number: int, fraction: float) -> str:
    """Return the split of a document, the same for all seeds of a run."""
    is_val = randomness.uniforms(0, "validation text", 0, np.array([number]), 1)[0, 0] < fraction
    return "val" if is_val else "train"


def _below(root: Path, text: BuiltInText | None) -> Iterator[Path]:
    suffixes, without = (text.extension, text.without) if text else ((*_PLAIN, *_TABLES), ())
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not is_ignored(name) and name not in without)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(suffixes) and not is_ignored(name))


def _split_of(names: Sequence[str]) -> str | None:
    word = re.split(r"[-_.]", names[0])[0].lower() if names else ""
    return next((split for split, words in _SPLITS.items() if word in words), None)


def _documents(file: TextFile, column: str | None) -> Iterator[tuple[bytes, bool]]:
    """Yield the documents of a file in pieces, and whether each ends there; long texts are cut after a line."""
    if file.path.suffix == ".parquet":
        yield from ((text, True) for text in _of_parquet(file.path, column))
        return
    with file.path.open("rb") as lines:
        if file.path.suffix == ".jsonl":
            yield from ((_of_line(line, number, file.path, column), True) for number, line in enumerate(lines, 1))
            return
        while piece := lines.read(_PIECE):
            piece += lines.readline()
            yield piece, lines.tell() >= file.size


def _of_line(line: bytes, number: int, path: Path, column: str | None) -> bytes:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise problem(str(path), f"line {number:,} is no JSON with a text ({error}); repair or remove it") from None
    if not isinstance(row, dict | str):
        raise problem(str(path), f"line {number:,} is no JSON with a text (it is {line[:60]!r}); repair or remove it")
    value = row[_named(row, column, path)] if isinstance(row, dict) else row
    return _utf8(value, f"line {number:,}", path)


def _utf8(value: object, place: str, path: Path) -> bytes:
    """Encode a text; a null is a document without text. Raises UserError for anything else."""
    if not isinstance(value, str | None):
        raise problem(str(path), f"{place} is no text (it has {value!s:.60}); repair or remove it")
    return (value or "").encode("utf-8", errors="replace")


def _of_parquet(path: Path, column: str | None) -> Iterator[bytes]:
    table = pyarrow_module("pyarrow.parquet", str(path)).ParquetFile(path)
    name = _named(table.schema_arrow.names, column, path)
    rows = (row for batch in table.iter_batches(_ROWS, columns=[name]) for row in batch.column(0).to_pylist())
    yield from (_utf8(row, f"row {number:,}", path) for number, row in enumerate(rows, 1))


def _named(names: Collection[str], column: str | None, path: Path) -> str:
    fitting = [name for name in ([column] if column else _COLUMNS) if name in names]
    if not fitting:
        wanted = f"column {column}" if column else "column text or content"
        has = f"{count_of(len(names), 'column')}: {', '.join(names)}"
        raise problem(str(path), f"has no {wanted} but {has}; set dataset.columns.text")
    return fitting[0]
