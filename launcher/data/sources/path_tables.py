"""Find the images of a table: a CSV, TSV or JSONL file with a path and a class in each row; imports no torch."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from launcher.counts import count_of
from launcher.data.index import Images, Texts
from launcher.data.listing import is_file, is_folder, unreadable_path
from launcher.data.sources.arrange import Rows, path_in_class
from launcher.data.sources.formats import SourceOptions, column_of, label_columns, label_text
from launcher.data.sources.layout import (
    VAL,
    Wanted,
    is_remote,
    of_split,
    part_among,
    problem,
    split_of_wanted,
)
from launcher.data.sources.shards import format_of
from launcher.data.sources.source import Files
from launcher.data.workers import Report
from launcher.errors import Problem, UserError, first_few

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = (*_DELIMITERS, ".jsonl")
_SPLIT = "split"
_METADATA = "metadata"
_NO_SPLIT = "tables of no split that is read"
_REPEATED = "rows with the image and label of an earlier one"

# The number of a row, from 1 on, and its values by column.
Row = tuple[int, Mapping[str, object]]


def list_tables(files: Files, parts: Sequence[Wanted], options: SourceOptions, report: Report) -> list[Images]:
    """Find the images of splits, or of all rows, in a table, or in those of a folder: one for each split, as train.csv.

    Paths are relative to the table's folder.

    Raises UserError if a table cannot be read, has no rows of a split, or one without an image or label.
    """
    path, tables = files.url, tables_in(files.url)
    taken = [_Taken(wanted, options) for wanted in parts]
    if path in tables:
        _read(Path(path), taken)
        return [one.images(path) for one in taken]
    chosen = [_chosen(path, tables, wanted) for wanted in parts]
    taken[0].rows.drop_unread(_NO_SPLIT, [file for file in tables if file not in chosen])
    for one, table in zip(taken, chosen, strict=True):
        _read(Path(table), [one], is_of_split=True)
    return [one.images(table) for one, table in zip(taken, chosen, strict=True)]


class _Taken:
    """The rows of one part of the images, with their files and groups."""

    def __init__(self, wanted: Wanted, options: SourceOptions) -> None:
        self.rows, self.options, self.files, self.groups = Rows(wanted), options, list[str](), list[str]()

    def add(self, table: Path, number: int, row: Mapping[str, object], image: str, labels: Sequence[str]) -> None:
        """Add a row; raises UserError if it has no image, label or group."""
        file, options = _file(table, number, row, image), self.options
        entry = f"row {number} ({row[image]})"
        label = label_text([row.get(name) for name in labels], options.columns, f"{table}: {entry}")
        options.check_label(label, str(table), entry, " and ".join(labels))
        name = path_in_class(str(row[image]), label)
        if isinstance(before := self.rows.place(label, name), int) and self.files[before] != file:
            name = f"{label}/{row[image]}"
        if self.rows.place(label, name) is not None:
            self.rows.drop(_REPEATED, entry)
            return
        self.rows.add(label, name, len(self.files))
        self.files.append(file)
        if options.groups is not None:
            self.groups.append(_group(table, entry, row, options.groups))

    def images(self, table: str) -> Images:
        """Return the images; raises UserError if there are none."""

        def columns(places: np.ndarray) -> dict[str, Any]:
            numbers = places.tolist()
            groups = Texts(self.groups[number] for number in numbers) if self.options.groups else None
            return {"paths": Texts(self.files[number] for number in numbers), "groups": groups}

        return self.rows.folder(table, [], columns)


def _read(table: Path, parts: Sequence[_Taken], *, is_of_split: bool = False) -> None:
    """Read the rows of a table, each into the part of its split, or all into one; raises UserError as `list_tables`."""
    first, options = next(_rows(table), None), parts[0].options
    if first is None:
        raise problem(table, "has no rows; add some")
    head, column = [*first[1]], options.columns.split or _SPLIT
    image = column_of(head, "image", options.columns.image, str(table))
    labels = label_columns(head, options.columns, str(table))
    by_split = {"": parts[0]} if is_of_split else _by_split(table, head, parts, column)
    if options.groups is not None and options.groups not in head:
        message = f"{table} has no such column; set one of {first_few(head)}"
        raise UserError(Problem(message, "dataset.groups", options.groups))
    for number, row in _rows(table):
        split = "" if "" in by_split else _split_in(row, column)
        if (part := by_split.get(split)) is not None:
            part.add(table, number, row, image, labels)
        else:
            parts[0].rows.drop_unread(f"rows whose {column} is {split}", [f"row {number}"])


def _by_split(table: Path, head: Sequence[str], parts: Sequence[_Taken], column: str) -> dict[str, _Taken]:
    """Return the parts of a table by the value of their split; one of all rows by an empty text.

    Raises UserError if a part has no rows, or validation images exist besides those to divide.
    """
    several = [one.rows.wanted for one in parts]
    if column not in head:
        if several in (["all"], ["evaluation"]):
            return {"": parts[0]}
        message = f"{table} has no such column; set dataset.val_split=0.1, or write train.csv and val.csv"
        raise UserError(Problem(message, "dataset.columns.split", column))
    values = {_split_in(row, column) for _, row in _rows(table)}
    if several == ["all"] and values.isdisjoint(("train", *VAL)):
        return {"": parts[0]}
    names = [part_among(table, values, wanted) for wanted in several]
    for name, wanted in zip(names, several, strict=True):
        if not name:
            missing = f"has no rows whose {column} is {split_of_wanted(wanted)}"
            raise problem(table, f"{missing}; add some, or set dataset.val_split=0.1")
    return dict(zip(map(str, names), parts, strict=True))


def _chosen(path: str, tables: Mapping[str, str], wanted: Wanted) -> str:
    """Return the table of a split in a folder; raises UserError if there are two."""
    chosen = of_split(path, tables, wanted)
    if len(chosen) > 1:
        raise problem(path, f"holds two tables of one split, {first_few(chosen)}; keep one")
    return chosen[0]


def _group(table: Path, entry: str, row: Mapping[str, object], column: str) -> str:
    """Return the group of a row; raises UserError if it has none."""
    if row.get(column) in (None, ""):
        raise problem(table, f"{entry} has no {column}; add it, or remove the row")
    return str(row[column])


def tables_in(path: str) -> dict[str, str]:
    """Return the tables of a data set by path, with their splits: itself, or files in its folder named after a split.

    So are Hugging Face's `train/metadata.jsonl`, beside images without class folders.

    Raises UserError if the path is that of a table that does not exist.
    """
    if format_of(path) in TABLES:
        if not is_file(Path(path)):
            raise problem(path, "no such file; set a table of images, an archive or a folder")
        return {path: ""}
    tables = {str(Path(path, f"{name}{one}")): name for name in ("train", *VAL) for one in TABLES}
    within = {str(Path(path, name, f"{_METADATA}{one}")): name for name in ("train", *VAL) for one in TABLES}
    beside = {file: name for file, name in within.items() if is_file(Path(file)) and lone_table(str(Path(file).parent))}
    return beside | {file: name for file, name in tables.items() if is_file(Path(file))}


def lone_table(path: str) -> str | None:
    """Return the only table in a folder of images without class folders; None for any other path."""
    if is_remote(path) or not is_folder(Path(path)):
        return None
    tables = [str(file) for file in sorted(Path(path).glob("[!.]*")) if file.suffix in TABLES and is_file(file)]
    folders = [Path(path, name) for name in folders_in(path)]
    if len(tables) != 1 or tables[0] in tables_in(path) or len(folders) > 1:
        return None
    return None if any(map(is_folder, (inner for one in folders for inner in one.iterdir()))) else tables[0]


def folders_in(path: str) -> list[str]:
    """Return the names of the folders in one on this machine, as `Tree.folders`; none if it cannot be read."""
    with suppress(OSError):
        return Files(path).tree().folders("")
    return []


def _split_in(row: Mapping[str, object], column: str) -> str:
    return str(row.get(column)).strip().lower() or "empty"


def _file(table: Path, number: int, row: Mapping[str, object], column: str) -> str:
    """Return the path of a row's image; raises UserError if it has none, or a URL."""
    value = row.get(column)
    if value in (None, ""):
        raise problem(table, f"row {number} has no {column}: {json.dumps(row)}; add it, or remove the row")
    if "://" in str(value):
        raise problem(table, f"{value} is a URL; only files are read from a table, so copy them to this machine")
    return str(table.parent / str(value))


def _object(line: str) -> Mapping[str, object]:
    """Return the values of a line of JSONL; raises ValueError if it is no object, or has a key twice."""

    def values(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(keys := dict(pairs)) < len(pairs):
            raise ValueError(f"a row has a key twice: {', '.join(name for name, _ in pairs)}")
        return keys

    row = json.loads(line, object_pairs_hook=values)
    if not isinstance(row, dict):
        raise ValueError('each line must be an object, such as {"path": "0.jpg", "label": "cat"}')
    return row


def _rows(table: Path) -> Iterator[Row]:
    """Yield the rows that are not blank; raises UserError if the file is no table."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            if format_of(str(table)) == ".jsonl":
                yield from enumerate((_object(line) for line in file if line.strip()), 1)
                return
            cells = csv.reader(file, delimiter=_DELIMITERS[format_of(str(table))], strict=True)
            rows = ([*map(str.strip, row)] for row in cells if any(map(str.strip, row)))
            head = next(rows, [])
            if len(head) == 1 and (other := next((one for one in ";\t," if one in head[0]), None)):
                raise problem(table, f"separates its cells by {other!r}; write commas, or tabs in a file .tsv")
            if len({*head}) < len(head):
                raise problem(table, f"has the column {max(head, key=head.count)} twice; rename one")
            for number, row in enumerate(rows, 1):
                if len(row) < len(head) or any(row[len(head) :]):
                    message = f"{count_of(len(row), 'cell')}, but the first line {len(head)}: {','.join(row)}"
                    raise problem(
                        table, f"row {number} has {message}; quote texts with commas, or add the missing cells"
                    )
                yield number, dict(zip(head, row, strict=False))
    except OSError as error:
        raise problem(table, unreadable_path(error)) from None
    except (ValueError, TypeError, csv.Error) as error:
        raise problem(table, f"is not a table in UTF-8 ({error}); repair it") from None
