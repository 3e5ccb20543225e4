"""Find the images of a table: a CSV, TSV or JSONL file with a path and a class in each row; imports no torch."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.counts import count_of
from launcher.data.index import Images, Texts
from launcher.data.listing import is_file, is_folder, unreadable_path
from launcher.data.sources.arrange import Place, Rows, path_in_class
from launcher.data.sources.formats import SourceOptions, column_of, label_columns, label_text
from launcher.data.sources.layout import (
    VAL,
    Wanted,
    is_remote,
    of_split,
    problem,
    split_among,
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
    several = [Rows(wanted) for wanted in parts]
    if path in tables:
        chosen = [path for _ in parts]
        _add_by_split(_Table(Path(path), options), several)
    else:
        chosen = [_chosen(path, tables, wanted) for wanted in parts]
        several[0].drop_unread(_NO_SPLIT, [file for file in tables if file not in chosen])
        for rows, file in zip(several, chosen, strict=True):
            table = _Table(Path(file), options)
            for row in _rows(table.path):
                table.add(rows, row)
    return [rows.images(file, [], _columns) for rows, file in zip(several, chosen, strict=True)]


class _Table:
    """A table with the names of the columns that are read.

    Raises UserError if it has no rows, or lacks one of the columns.
    """

    def __init__(self, path: Path, options: SourceOptions):
        self.path, self._options = path, options
        if (first := next(_rows(path), None)) is None:
            raise problem(path, "has no rows; add some")
        self.columns = [*first[1]]
        self.split = options.columns.split or _SPLIT
        self._image = column_of(self.columns, "image", options.columns.image, str(path))
        self._labels = label_columns(self.columns, options.columns, str(path))
        if options.groups is not None and options.groups not in self.columns:
            message = f"{path} has no such column; set one of {first_few(self.columns)}"
            raise UserError(Problem(message, "dataset.groups", options.groups))

    def split_of(self, row: Row) -> str:
        """Return the split of a row as its column has it, in small letters."""
        return str(row[1].get(self.split)).strip().lower() or "empty"

    def add(self, rows: Rows, row: Row) -> None:
        """Add a row with its file and group; raises UserError if it has no image, label or group."""
        number, values = row
        file, options = _file(self.path, number, values, self._image), self._options
        image = str(values[self._image])
        entry = f"row {number} ({image})"
        label = label_text([values.get(name) for name in self._labels], options.columns, f"{self.path}: {entry}")
        options.check_label(label, str(self.path), entry, " and ".join(self._labels))
        group = "" if options.groups is None else _group(self.path, entry, values, options.groups)
        name = path_in_class(image, label)
        if (before := rows.place(label, name)) is not None and before[0] != file:
            name = f"{label}/{image}"
        if rows.place(label, name) is None:
            rows.add(label, name, (file, group))
        else:
            rows.drop(_REPEATED, entry)


def _columns(places: list[Place]) -> dict[str, Any]:
    files, groups = (Texts(column) for column in zip(*places, strict=True))
    return {"paths": files, "groups": groups if len(groups.content) else None}


def _add_by_split(table: _Table, several: Sequence[Rows]) -> None:
    """Add each row of a table to the rows of its split, or all to one.

    Raises UserError if a split has no rows, or validation images exist besides those to divide.
    """
    parts, values = [rows.wanted for rows in several], {""}
    if table.split in table.columns:
        values = {table.split_of(row) for row in _rows(table.path)}
    elif len(parts) > 1 or parts[0] not in ("all", "evaluation"):
        message = f"{table.path} has no such column; set dataset.val_split=0.1, or write train.csv and val.csv"
        raise UserError(Problem(message, "dataset.columns.split", table.split))
    if values == {""} or (parts == ["all"] and values.isdisjoint(("train", *VAL))):
        for row in _rows(table.path):
            table.add(several[0], row)
        return
    names = [split_among(str(table.path), values, wanted) for wanted in parts]
    for name, wanted in zip(names, parts, strict=True):
        if not name:
            missing = f"has no rows whose {table.split} is {split_of_wanted(wanted)}"
            raise problem(table.path, f"{missing}; add some, or set dataset.val_split=0.1")
    by_split = dict(zip(names, several, strict=True))
    for row in _rows(table.path):
        split = table.split_of(row)
        if (rows := by_split.get(split)) is not None:
            table.add(rows, row)
        else:
            several[0].drop_unread(f"rows whose {table.split} is {split}", [f"row {row[0]}"])


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
