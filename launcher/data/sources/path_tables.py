"""Find the images of a table: a CSV, TSV or JSONL file with a path and a class in each row; imports no torch."""

import csv
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from launcher.config.class_names import in_order
from launcher.counts import count_of
from launcher.data.dropped import Dropped, Drops, drop, drops_of
from launcher.data.folder import Folder, counted
from launcher.data.listing import is_file, unreadable_path
from launcher.data.sources.arrange import path_in_class
from launcher.data.sources.formats import SourceOptions, column_of, label_columns, label_text
from launcher.data.sources.layout import VAL, Wanted, problem
from launcher.data.sources.pieces import Listed, Paths
from launcher.data.sources.shards import check_undivided, format_of, of_split, unread
from launcher.errors import Problem, UserError, first_few

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = (*_DELIMITERS, ".jsonl")
_SPLIT = "split"
_NO_SPLIT = "tables of no split that is read"
_REPEATED = "rows with the image and label of an earlier one"

# The number of a row, from 1 on, and its values by column.
Row = tuple[int, Mapping[str, object]]


def table_source(path: str, wanted: Wanted, options: SourceOptions) -> Folder | None:
    """Find the images of a split, or of all rows, in a table; None if there is no table.

    A folder has a table for each split, such as train.csv and val.csv; paths are relative to the table's folder.

    Raises UserError if the table cannot be read, has no rows of the split, or one without an image or label.
    """
    if (table := table_of(path, wanted)) is None:
        return None
    first = next(_rows(table), None)
    if first is None:
        raise problem(table, "has no rows; add some")
    head = [*first[1]]
    image = column_of(head, "image", options.columns, str(table))
    labels = label_columns(head, options.columns, str(table))
    column = options.columns.split or _SPLIT
    value, dropped = _of_split(table, head, wanted, column) if str(table) == path else ("", _beside(path, wanted))
    images, seen = _Images(), sum(one.rows for one in dropped.values())
    for number, row in _rows(table):
        if value and _split_in(row, column) != value:
            continue
        seen += 1
        file = _file(table, number, row, image)
        where = f"{table}: row {number} ({row[image]})"
        label = label_text([row.get(name) for name in labels], options.columns, where)
        if options.lacks_label(label):
            raise problem(
                table, f"row {number} ({row[image]}) has no {' and '.join(labels)}; add it, or remove the row"
            )
        if not images.add(label, str(row[image]), file):
            drop(dropped, _REPEATED, f"row {number} ({row[image]})")
    return counted(images.folder(table, "val" if wanted in ("val", "evaluation") else "train", seen, dropped))


def table_of(path: str, wanted: Wanted) -> Path | None:
    """Return the table of a split: the path itself, or a file of the folder that is named after the split.

    Raises UserError if the path is that of a table that does not exist.
    """
    if format_of(path) in TABLES:
        if not is_file(Path(path)):
            raise problem(path, "no such file; set a table of images, an archive or a folder")
        return Path(path)
    names = VAL if wanted in ("val", "evaluation") else ("train",)
    return next(filter(is_file, (Path(path, f"{name}{one}") for name in names for one in TABLES)), None)


def _beside(path: str, wanted: Wanted) -> Drops:
    """Return the tables of a folder that no split reads: they count for training.

    Raises UserError if a split has two, or validation images exist besides those to divide.
    """
    files = {str(Path(path, f"{name}{one}")): name for name in ("train", *VAL) for one in TABLES}
    tables = {file: name for file, name in files.items() if is_file(Path(file))}
    if len(chosen := of_split(path, tables, wanted)) > 1:
        raise problem(path, f"holds two tables of one split, {first_few(chosen)}; keep one")
    return drops_of({_NO_SPLIT: unread(tables, chosen, wanted)})


def _of_split(table: Path, head: Sequence[str], wanted: Wanted, column: str) -> tuple[str, Drops]:
    """Return the value of a split in its column, empty for all rows, and dropped rows: they count for training.

    Raises UserError if it has no rows, or validation images exist besides those to divide.
    """
    if column not in head:
        if wanted in ("all", "evaluation"):
            return "", {}
        message = f"{table} has no such column; set dataset.val_split=0.1, or write train.csv and val.csv"
        raise UserError(Problem(message, "dataset.columns.split", column))
    rows: Drops = {}
    for number, row in _rows(table):
        drop(rows, _split_in(row, column), f"row {number}")
    val = next((name for name in VAL if name in rows), None)
    if wanted == "all":
        if val is None and "train" not in rows:
            return "", {}
        check_undivided(str(table), rows)
    chosen = "train" if wanted in ("train", "all") else val
    if chosen is None or chosen not in rows:
        split = "train" if wanted in ("train", "all") else "val"
        raise problem(table, f"has no rows whose {column} is {split}; add some, or set dataset.val_split=0.1")
    read = {"train", *([val] if wanted == "train" else ())}
    others = {value: one for value, one in rows.items() if chosen == "train" and value not in read}
    return chosen, {f"rows whose {column} is {value}": one for value, one in others.items()}


def _split_in(row: Mapping[str, object], column: str) -> str:
    return str(row.get(column)).strip().lower() or "empty"


class _Images:
    """The images of a table by class and CLASS/NAME.

    A table may have millions of rows, so each image keeps one Python object, its name; `Paths` stores the files.
    """

    def __init__(self) -> None:
        self._rows: dict[str | tuple[str, str], int] = {}
        self._classes: dict[str, int] = {}
        self._labels = array("q")
        self._files = Paths()

    def add(self, label: str, value: str, file: str) -> bool:
        """Add the image of a row; return whether it is the first of its name."""
        name = path_in_class(value, label)
        before = self._rows.get(_key(label, name))
        if before is not None and self._files[before] != file:
            name = f"{label}/{value}"
            before = self._rows.get(_key(label, name))
        if before is None or self._files[before] != file:
            self._rows[_key(label, name)] = len(self._labels)
            self._labels.append(self._classes.setdefault(label, len(self._classes)))
            self._files.append(file)
        return before is None

    def folder(self, table: Path, split: str, seen: int, dropped: Mapping[str, Dropped]) -> Folder:
        """Return the images, sorted by class and name."""
        keys = sorted(self._rows, key=_name)
        rows = np.fromiter(map(self._rows.__getitem__, keys), np.int64, len(keys))
        classes = in_order(self._classes)
        places = {name: number for number, name in enumerate(classes)}
        labels = np.array([places[name] for name in self._classes], np.int64)[np.array(self._labels)[rows]]
        by_class = np.argsort(labels, kind="stable")
        names = [_name(keys[number]) for number in by_class.tolist()]
        stored = Listed(self._files, rows[by_class])
        return Folder(str(table), split, classes, names, labels[by_class], stored, "", seen, dropped)


def _key(label: str, name: str) -> str | tuple[str, str]:
    """Return what identifies an image: its name, which starts with the class, unless that may end elsewhere."""
    return (label, name) if "/" in label else name


def _name(key: str | tuple[str, str]) -> str:
    return key if isinstance(key, str) else key[1]


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
