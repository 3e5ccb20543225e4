"""Find the images of a table: a CSV, TSV or JSONL file with a path and a class in each row; imports no torch."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from launcher.config.schema import Columns
from launcher.data.folder import VAL, Folder, problem
from launcher.data.listing import is_file, unreadable_path
from launcher.data.sources.formats import class_name, column_of, label_columns, label_text
from launcher.data.sources.pieces import Listed
from launcher.data.sources.shards import name_in_class
from launcher.data.sources.source import labelled
from launcher.errors import Problem, UserError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = (*_DELIMITERS, ".jsonl")
_SPLIT = "split"


def table_source(path: str, split: str, columns: Columns) -> Folder | None:
    """Find the images of a split, or of all rows if it is empty, in a table; None if there is no table.

    A folder has a table for each split, such as train.csv and val.csv; paths are relative to the table's folder.

    Raises UserError if the table cannot be read, or has no rows of the split.
    """
    if (table := table_of(path, split or "train")) is None:
        return None
    names = VAL if split == "val" else (split or "train",)
    if str(table) != path:
        split = ""
    rows = [*_rows(table)]
    if not rows:
        raise problem(table, "has no rows; add some")
    head = [*rows[0]]
    image, labels = column_of(head, "image", columns, str(table)), label_columns(head, columns, str(table))
    if split:
        column = columns.split or _SPLIT
        if column not in head:
            message = f"{table} has no such column; set dataset.val_split=0.1, or write train.csv and val.csv"
            raise UserError(Problem(message, "dataset.columns.split", column))
        held = {str(row.get(column)).strip().lower() for row in rows}
        name = next((name for name in names if name in held), None)
        rows = [row for row in rows if str(row.get(column)).strip().lower() == name]
        if name is None:
            raise problem(table, f"has no rows whose {column} is {split}; add some, or set dataset.val_split=0.1")
    texts = [label_text([row.get(label) for label in labels], columns) for row in rows]
    return _source(table, split or names[0], [*zip([_text(table, row, image) for row in rows], texts, strict=True)])


def table_of(path: str, split: str) -> Path | None:
    """Return the table of a split: the path itself, or a file of the folder that is named after the split.

    Raises UserError if the path is that of a table that does not exist.
    """
    if path.endswith(TABLES):
        if not is_file(Path(path)):
            raise problem(path, "no such file; set a table of images, an archive or a folder")
        return Path(path)
    names = VAL if split == "val" else (split,)
    return next(filter(is_file, (Path(path, f"{name}{one}") for name in names for one in TABLES)), None)


def _source(table: Path, split: str, rows: Sequence[tuple[str, str]]) -> Folder:
    images: dict[tuple[str, str], str] = {}
    for path, label in rows:
        if "://" in path:
            raise problem(table, f"{path} is a URL; only files are read from a table, so copy them to this machine")
        named = class_name(label)
        name = named, name_in_class(path, named)
        file = str(table.parent / path)
        if images.get(name, file) != file:
            name = named, path
        images[name] = file
    names = sorted(images)
    paths = Listed(np.array([images[name] for name in names]))
    return Folder(str(table), "val" if split in VAL else "train", *labelled(names), paths)


def _text(table: Path, row: Mapping[str, object], column: str) -> str:
    if (value := row.get(column)) in (None, ""):
        raise problem(table, f"a row has no {column}: {json.dumps(row)}; add it, or remove the row")
    return str(value)


def _rows(table: Path) -> Iterator[Mapping[str, object]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            if table.suffix == ".jsonl":
                yield from (dict(json.loads(line)) for line in file if line.strip())
            else:
                rows = ([*map(str.strip, row)] for row in csv.reader(file, delimiter=_DELIMITERS[table.suffix]) if row)
                head = next(rows, [])
                yield from (dict(zip(head, row, strict=False)) for row in rows)
    except OSError as error:
        raise problem(table, unreadable_path(error)) from None
    except (ValueError, TypeError, csv.Error) as error:
        raise problem(table, f"is not a table in UTF-8 ({error}); repair it") from None
