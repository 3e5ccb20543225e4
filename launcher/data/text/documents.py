"""Documents of text: files, lines of JSONL, or the source of Python's standard library; no torch."""

import codecs
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from launcher.compute import randomness
from launcher.config.builtin import BuiltInText, text_of
from launcher.config.schema import Dataset
from launcher.counts import count_of
from launcher.data.dropped import BROKEN, Drops, drop
from launcher.data.listing import is_file, is_ignored, unreadable_path
from launcher.data.sources.layout import problem
from launcher.data.text.names import split_of, unread, validation_among
from launcher.errors import Problem, UserError

_PIECE = 1 << 24
_PLAIN = (".txt", ".md", ".text", ".py")
_COLUMNS = ("text", "content")
_ANY = (*_PLAIN, ".jsonl")
_TO_JSONL = "write Parquet as .jsonl, by to_json of the package datasets"
_LINKED = "links to folders, which are not read"
_NO_TEXT = f"files without an extension of text ({' '.join(_ANY)})"


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


def text_files(dataset: Dataset, *, whole: bool = False) -> tuple[list[TextFile], Drops]:
    """List the files of a data set's documents in the order of their names, and count what is not read.

    Folders or files whose names have train and val, or the first other name of validation, are the splits; with
    `dataset.val_split` each document of the others draws one. `whole`: all are for validation, of divided text only
    its validation.

    Raises UserError if there are none, or a split is missing.
    """
    text, drops = text_of(dataset.kind) if dataset.is_built_in else None, Drops()
    root = text.root() if text else Path(dataset.path or "")
    if not (text or dataset.path) or not root.exists():
        message = "no such file or folder; set a file or folder of text, or a folder of tokens"
        raise UserError(Problem(message, "dataset.path", dataset.path))
    if root.is_file() and not root.name.lower().endswith(_ANY):
        raise problem(root, f"has no extension of text ({' '.join(_ANY)}); rename it, or {_TO_JSONL}")
    files = [root] if root.is_file() else [*_below(root, text, drops)]
    words = {file: None if text else split_of(file, root) for file in files}
    splits = _splits(words, str(root), whole=whole, draws=dataset.val_split is not None)
    listed = []
    for file in files:
        facts, name = file.stat(), file.name if file == root else file.relative_to(root).as_posix()
        if file in splits:
            listed.append(TextFile(file, name, splits[file], facts.st_size, facts.st_mtime_ns))
        else:
            drop(drops, unread("text", words[file]), name)
    return listed, drops


def _splits(words: Mapping[Path, str | None], root: str, *, whole: bool, draws: bool) -> dict[Path, str | None]:
    """Return the split of the files that are read, None if their documents draw it; `words`: those of their names."""
    held_out = validation_among(words.values())
    if not words:
        raise problem(root, f"has no text (.txt or .jsonl), and no tokens in train*.bin and val*.bin; {_TO_JSONL}")
    if whole:
        return {file: "val" for file, word in words.items() if held_out in (None, word)}
    if not draws and held_out is None:
        message = "has no text for validation, val.txt, val.jsonl or val/; add it, or set dataset.val_split=0.01"
        raise problem(root, message)
    of_words = {None: None, "train": None} if draws else {"train": "train", held_out: "val"}
    splits = {file: of_words[word] for file, word in words.items() if word in of_words}
    if not {"train", None} & {*splits.values()}:
        raise problem(root, f"has text named {held_out}, but none for training; add train.txt, train.jsonl or train/")
    return splits


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


def _below(root: Path, text: BuiltInText | None, drops: Drops) -> Iterator[Path]:
    """Yield the files of text below a folder, and count others beside text that is not built in."""
    suffixes, without = (text.extension, text.without) if text else (_ANY, ())
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not is_ignored(name) and name not in without)
        for name in filter(lambda name: os.path.islink(f"{folder}/{name}"), folders):  # noqa: PTH114 - of a million files
            drop(drops, _LINKED, Path(folder, name).relative_to(root).as_posix())
        for name in sorted(name for name in names if not is_ignored(name)):
            path = Path(folder, name)
            if name.lower().endswith(suffixes) and is_file(path):
                yield path
            elif text is None:
                reason = _NO_TEXT if is_file(path) else BROKEN
                drop(drops, reason, path.relative_to(root).as_posix())


def _refuse(error: OSError) -> None:
    raise UserError(unreadable_path(error))


def _documents(file: TextFile, column: str | None) -> Iterator[tuple[bytes, bool]]:
    """Yield the documents of a file in pieces, and whether each ends there; long texts are cut after a line."""
    with file.path.open("rb") as lines:
        if file.path.suffix.lower() == ".jsonl":
            yield from ((text, True) for text in _of_lines(lines, file.path, column))
            return
        while piece := lines.read(_PIECE):
            place = lines.tell() - len(piece)
            piece += lines.readline()
            _check_text(piece, place, file.path)
            yield piece.removeprefix(codecs.BOM_UTF8 if place == 0 else b""), lines.tell() >= file.size


def _check_text(piece: bytes, place: int, path: Path) -> None:
    """Raise a UserError if a piece of a file, from a place on, is not text in UTF-8."""
    try:
        piece.decode()
        wrong = piece.find(b"\0")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        reason = f"is no text in UTF-8 at byte {place + wrong:,} ({piece[wrong : wrong + 4]!r})"
        raise problem(path, f"{reason}; save it as UTF-8, or remove it")


def _of_lines(lines: Iterable[bytes], path: Path, column: str | None) -> Iterator[bytes]:
    """Yield the texts of lines of JSON; all rows have the column of the first."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            # note: of bytes, json guesses UTF-16 and passes surrogates
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except ValueError as error:
            raise _wrong(path, f"line {number:,} is no JSON with a text ({error})") from None
        if not isinstance(row, dict | str):
            raise _wrong(path, f"line {number:,} is no JSON with a text (it is {line[:60]!r})")
        if isinstance(row, dict):
            column = _named(row, column, path)
        yield _utf8(row if isinstance(row, str) else row[column], f"line {number:,}", path)


def _utf8(value: object, place: str, path: Path) -> bytes:
    """Encode a text; a null is a document without text. Raises UserError for anything else."""
    if not isinstance(value, str | None):
        raise _wrong(path, f"{place} is no text (it has {value!s:.60})")
    try:
        return (value or "").encode()
    except UnicodeEncodeError as error:
        half = f"half of a character, {error.object[error.start]!a}, which UTF-8 cannot store"
        raise _wrong(path, f"{place} has {half}") from None


def _wrong(path: Path, what: str) -> UserError:
    return problem(path, f"{what}; repair or remove it")


def _named(names: Collection[str], column: str | None, path: Path) -> str:
    fitting = [name for name in ([column] if column else _COLUMNS) if name in names]
    if not fitting:
        wanted = f"column {column}" if column else "column text or content"
        has = f"{count_of(len(names), 'column')}: {', '.join(names)}"
        raise problem(path, f"has no {wanted} but {has}; set dataset.columns.text")
    if len(fitting) > 1:
        raise problem(path, f"has the columns {' and '.join(fitting)}; set dataset.columns.text to one of them")
    return fitting[0]
