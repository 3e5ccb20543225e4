"""Write the documents of a data set as files of tokens, which every run of it reads; imports no torch."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from launcher import paths
from launcher.config.schema import Dataset, RunConfig
from launcher.data.dropped import Drops
from launcher.data.index import Images
from launcher.data.loaders.tokens import TokenLoader
from launcher.data.text.documents import Passage, pieces_of, text_files
from launcher.data.text.shards import shards_in, write_shard
from launcher.data.text.tokenizer import tokenizer_of, tokenizer_text
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, UserError
from launcher.files import atomic

SPLITS = ("train", "val")
_FACTS, _TOKENIZER = "tokens.json", "tokenizer.json"
_CHUNK = 1 << 25  # bytes of text


@dataclass(frozen=True)
class Tokens:
    """Files of tokens in a folder, by split; `tokenizer` is the text of theirs if known, else None.

    key: of the text and tokenizer that they are made of, if this program wrote them. extensions: those of the text with
    their counts, if it has several.
    """

    folder: Path
    files: dict[str, list[str]]
    tokenizer: str | None = None
    key: str | None = None
    dropped: Drops = field(default_factory=dict)
    extensions: str = ""


def tokens_of(dataset: Dataset, folder: str | None, report: Report, *, whole: bool = False) -> Tokens:
    """Return the files of tokens at the data set's path, or those of its text, which are written first if missing.

    folder: of the files of its text; None for one in the user's cache. whole: all of the text is for validation.

    Raises UserError if the path has neither, or the folder has those of another text.
    """
    if dataset.path and not dataset.is_built_in:
        files, drops = shards_in(Path(dataset.path))
        if files:
            return _read(dataset, Path(dataset.path), files, drops)
    return _Job(dataset, folder, whole).run(report)


def tokens_in(config: RunConfig, report: Report = quiet) -> Tokens:
    """Return the files of tokens of a run's data set, written first if need be; raises as `tokens_of`."""
    assert isinstance(config.dataloader, TokenLoader)
    return tokens_of(config.dataset, config.dataloader.folder, report)


def _read(dataset: Dataset, folder: Path, files: dict[str, list[str]], drops: Drops) -> Tokens:
    """Return files of tokens that are there; raises UserError if they are incomplete, or values are for other ones."""
    written = _facts(folder) or {"complete": True}
    if not written["complete"]:
        message = "has only some of the tokens; set the text as dataset.path, and run train prepare again"
        raise UserError(Problem(message, "dataset.path", folder))
    if dataset.val_split is not None:
        message = f"divides documents of text, and {folder} has tokens; remove it, and add val*.bin if it is missing"
        raise UserError(Problem(message, "dataset.val_split", dataset.val_split))
    tokenizer = tokenizer_in(str(folder), dataset.tokenizer)
    if dataset.tokenizer and tokenizer != tokenizer_text(dataset.tokenizer):
        message = f"is not the tokenizer of {folder}, which its tokenizer.json is; remove the key"
        raise UserError(Problem(message, "dataset.tokenizer", dataset.tokenizer))
    return Tokens(folder, files, tokenizer, written.get("key"), dropped=drops)


def tokens_of_splits(images: Sequence[Images]) -> Tokens:
    """Return the files of tokens of splits that are listed."""
    folder = Path(images[0].root)
    return Tokens(folder, {one.split: [*one.names] for one in images}, key=(_facts(folder) or {}).get("key"))


def tokenizer_in(folder: str, file: str | None) -> str | None:
    """Return the text of the tokenizer that wrote a folder's tokens, else that of a file; None without either."""
    if _facts(Path(folder)):
        return (Path(folder) / _TOKENIZER).read_text(encoding="utf-8")
    return None if file is None else tokenizer_text(file)


class _Job:
    """The writing of a data set's tokens; a stopped one continues after the last complete pair of files."""

    def __init__(self, dataset: Dataset, folder: str | None, whole: bool):
        self.dataset, (self.files, self.dropped) = dataset, text_files(dataset, whole=whole)
        self.tokenizer = tokenizer_text(dataset.tokenizer)
        sources = [(one.name, one.split, one.size, one.changed) for one in self.files]
        made_of = [sources, dataset.val_split, dataset.columns.text, self.tokenizer, _CHUNK]
        self.key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
        self.folder = Path(folder) if folder else paths.cache() / f"tokens-{self.key[:12]}"

    def run(self, report: Report) -> Tokens:
        written = _facts(self.folder)
        if (written and written["key"] != self.key) or (written is None and shards_in(self.folder)[0]):
            message = "has the tokens of other text, or by another tokenizer; remove them, or set another folder"
            raise UserError(Problem(message, "dataloader.folder", self.folder))
        if not (written and written["complete"]):
            written = self._write(report)
        counts = Counter(Path(one.name).suffix.lower() for one in self.files)
        extensions = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) if len(counts) > 1 else ""
        return Tokens(self.folder, shards_in(self.folder)[0], self.tokenizer, self.key, self.dropped, extensions)

    def _write(self, report: Report) -> dict[str, Any]:
        tokenizer = tokenizer_of(self.tokenizer, self.dataset.tokenizer or "")
        facts: dict[str, Any] = {"key": self.key, "vocabulary": tokenizer.vocabulary, "complete": False}
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(self.folder / _FACTS, json.dumps(facts))
        atomic.write_text(self.folder / _TOKENIZER, self.tokenizer)
        total = sum(one.size for one in self.files)
        for number, chunk in enumerate(_chunks(pieces_of(self.files, self.dataset))):
            report("tokenizing", chunk[-1].done, total)
            names = {split: self.folder / f"{split}_{number:06d}.bin" for split in SPLITS}
            if all(path.is_file() for path in names.values()):
                continue
            encoded, end = tokenizer.encode([piece.text for piece in chunk]), np.array([tokenizer.end])
            for split, path in names.items():
                own = [
                    (tokens, piece.ends) for tokens, piece in zip(encoded, chunk, strict=True) if piece.split == split
                ]
                parts = [part for tokens, ends in own for part in (tokens, end[: int(ends)])]
                write_shard(path, np.concatenate([np.zeros(0, np.int64), *parts]), tokenizer.vocabulary)
        facts["complete"] = True
        atomic.write_text(self.folder / _FACTS, json.dumps(facts))
        return facts


def _chunks(pieces: Iterator[Passage]) -> Iterator[list[Passage]]:
    """Group pieces until they have the bytes of a chunk, the same at every start."""
    chunk: list[Passage] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece.text)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _facts(folder: Path) -> dict[str, Any] | None:
    path = folder / _FACTS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
