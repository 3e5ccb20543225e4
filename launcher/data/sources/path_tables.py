"""Find the images of a table: a CSV, TSV or JSONL file with a path and a class in each row; imports no torch."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from launcher.config.class_names import in_order
from launcher.data.folder import Dropped, Folder, counted, problem
from launcher.data.listing import is_file, unreadable_path
from launcher.data.sources.arrange import path_in_class
from launcher.data.sources.formats import column_of, label_columns, label_text
from launcher.data.sources.layout import VAL, Wanted
from launcher.data.sources.pieces import Listed
from launcher.data.sources.shards import Options, format_of
from launcher.errors import Problem, UserError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = (*_DELIMITERS, ".jsonl")
_SPLIT = "split"
_REPEATED = "rows that repeat an image and its label"

# The number of a row, from 1 on, and its values by column.
Row = tuple[int, Mapping[str, object]]


def table_source(path: str, wanted: Wanted, options: Options) -> Folder | None:
    """Find the images of a split, or of all rows, in a table; None if there is no table.

    A folder has a table for each split, such as train.csv and val.csv; paths are relative to the table's folder.

    Raises UserError if the table cannot be read, has no rows of the split, or one without an image or label.
    """
    if (table := table_of(path, wanted)) is None:
        return None
    rows: Sequence[Row] = [*_rows(table)]
    if not rows:
        raise problem(table, "has no rows; add some")
    head = [*rows[0][1]]
    image = column_of(head, "image", options.columns, str(table))
    labels = label_columns(head, options.columns, str(table))
    seen, dropped, split = len(rows), dict[str, Dropped](), wanted
    if str(table) == path and wanted != "all":
        rows, dropped, others = _of_split(table, rows, wanted, options.columns.split or _SPLIT)
        seen -= others
    images: dict[tuple[str, str], str] = {}
    for number, row in rows:
        file = _file(table, number, row, image)
        label = label_text([row.get(name) for name in labels], options.columns)
        if not label and options.needs_label:
            raise problem(table, f"row {number} ({row[image]}) has no {labels[0]}; add it, or remove the row")
        name = label, path_in_class(str(row[image]), label)
        if images.get(name, file) != file:
            name = label, f"{label}/{row[image]}"
        if name in images:
            count, first = dropped.get(_REPEATED, (0, f"row {number} ({row[image]})"))
            dropped[_REPEATED] = Dropped(count + 1, first)
        images[name] = file
    return counted(_folder(table, split, images, seen, dropped))


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


def _of_split(
    table: Path, rows: Sequence[Row], wanted: Wanted, column: str
) -> tuple[Sequence[Row], dict[str, Dropped], int]:
    """Return the rows of a split, the dropped ones, which count for the training images, and the number of others."""
    if column not in rows[0][1]:
        if wanted == "evaluation":
            return rows, {}, 0
        message = f"{table} has no such column; set dataset.val_split=0.1, or write train.csv and val.csv"
        raise UserError(Problem(message, "dataset.columns.split", column))
    values = [str(row.get(column)).strip().lower() for _, row in rows]
    val = next((name for name in VAL if name in values), None)
    name = "train" if wanted == "train" else val
    if name not in values:
        split = "train" if wanted == "train" else "val"
        raise problem(table, f"has no rows whose {column} is {split}; add some, or set dataset.val_split=0.1")
    dropped: dict[str, Dropped] = {}
    for (number, _), value in zip(rows, values, strict=True):
        if wanted == "train" and value not in ("train", val):
            reason = f"rows whose {column} is {value or 'empty'}"
            count, first = dropped.get(reason, (0, f"row {number}"))
            dropped[reason] = Dropped(count + 1, first)
    chosen = [row for row, value in zip(rows, values, strict=True) if value == name]
    return chosen, dropped, len(rows) - len(chosen) - sum(one.rows for one in dropped.values())


def _folder(
    table: Path, wanted: Wanted, images: Mapping[tuple[str, str], str], seen: int, dropped: Mapping[str, Dropped]
) -> Folder:
    classes = in_order(label for label, _ in images)
    numbers = {name: number for number, name in enumerate(classes)}
    names = sorted(images, key=lambda one: (numbers[one[0]], one[1]))
    labels = np.array([numbers[label] for label, _ in names], np.int64)
    stored = Listed(np.array([images[name] for name in names]))
    split = "val" if wanted in ("val", "evaluation") else "train"
    listed = [path for _, path in names]
    return Folder(str(table), split, classes, listed, labels, stored, "", seen, dropped)


def _file(table: Path, number: int, row: Mapping[str, object], column: str) -> str:
    """Return the path of a row's image; raises UserError if it has none, or a URL."""
    value = row.get(column)
    if value in (None, ""):
        raise problem(table, f"row {number} has no {column}: {json.dumps(row)}; add it, or remove the row")
    if "://" in str(value):
        raise problem(table, f"{value} is a URL; only files are read from a table, so copy them to this machine")
    return str(table.parent / str(value))


def _rows(table: Path) -> Iterator[Row]:
    """Yield the rows that are not blank; raises UserError if the file is no table."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            if format_of(str(table)) == ".jsonl":
                yield from enumerate((dict(json.loads(line)) for line in file if line.strip()), 1)
                return
            cells = csv.reader(file, delimiter=_DELIMITERS[format_of(str(table))], strict=True)
            rows = ([*map(str.strip, row)] for row in cells if any(map(str.strip, row)))
            head = next(rows, [])
            if len({*head}) < len(head):
                raise problem(table, f"has the column {max(head, key=head.count)} twice; rename one")
            for number, row in enumerate(rows, 1):
                if len(row) < len(head) or any(row[len(head) :]):
                    message = f"row {number} has {len(row)} cells, but the first line {len(head)}: {','.join(row)}"
                    raise problem(table, f"{message}; quote texts with commas, or add the missing cells")
                yield number, dict(zip(head, row, strict=False))
    except OSError as error:
        raise problem(table, unreadable_path(error)) from None
    except (ValueError, TypeError, csv.Error) as error:
        raise problem(table, f"is not a table in UTF-8 ({error}); repair it") from None
