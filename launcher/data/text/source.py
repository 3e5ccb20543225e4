"""Files of tokens as a run reads them: sequences, counted and identified; imports no torch before it opens them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.dropped import notes_on
from launcher.data.identity import fingerprint, of_splits
from launcher.data.index import Images, Texts
from launcher.data.loaders.base import Found, Opening, Source
from launcher.data.text.prepare import SPLITS, Tokens, tokenizer_in, tokens_in, tokens_of, tokens_of_splits
from launcher.data.text.shards import Stream, check_shard
from launcher.data.text.tokenizer import tokenizer_of
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan

if TYPE_CHECKING:
    from launcher.data.images import Reader


class TokenFiles(Source):
    """Files of tokens, or text that is written as such first."""

    def list(self, config: RunConfig, skipped: Collection[str] | None) -> Sequence[Images]:
        return _both(config, tokens_in(config))

    def find(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Found:
        tokens, dataset = tokens_in(config, report), config.dataset
        vocabulary = _vocabulary(tokens, config)
        config = replace(config, dataset=replace(dataset, classes=vocabulary))
        both, notes = _both(config, tokens), notes_on(tokens.dropped)
        for split, wanted in zip(both, (dataset.train_samples, dataset.val_samples), strict=True):
            _check(split, vocabulary, report)
            if wanted and wanted > len(split.labels):
                (length,) = config.task.full_size(config)
                has = f"{count_of(len(split.labels), 'sequence')} of {count_of(length, 'token')}"
                key = f"dataset.{split.split}_samples={wanted}"
                notes.append(f"{tokens.folder} has only {has} for {split.split}, not {key}")
        if tokens.extensions:
            notes.append(f"the text is of several kinds of files: {tokens.extensions}")
        return Found(both, tokens.folder, classes=vocabulary, notes=notes)

    def identity(self, config: RunConfig, images: Sequence[Images]) -> str:
        """Return the hash of the text and tokenizer, or of the names and sizes of other programs' files."""
        tokens = tokens_of_splits(images[:2]) if images else tokens_in(config)
        files = ([(name, (tokens.folder / name).stat().st_size) for name in tokens.files[split]] for split in SPLITS)
        return tokens.key or of_splits(*map(fingerprint, files))

    def other(self, path: str, plan: Plan, facts: Mapping[str, Any]) -> Reader | None:
        dataset = plan.config.dataset
        other = replace(dataset, path=path, kind="folder", val_split=None)
        tokens = tokens_of(other, None, quiet, whole=True)
        sequences = _sequences(replace(plan.config, dataset=other), tokens, "val", None)
        _check(sequences, dataset.classes or 0)
        reader = _reader(sequences, plan)
        if reader.facts["tokenizer"] != facts.get("tokenizer"):
            message = "has tokens by another tokenizer than the run's; set text, or tokens by that of the run"
            raise UserError(Problem(message, "dataset.path", path))
        return reader

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        train, val = (_reader(one, opening.plan) for one in opening.images)
        return train, val


def _vocabulary(tokens: Tokens, config: RunConfig) -> int:
    """Return the size of the vocabulary; raises UserError if it is unknown, or less than the tokenizer's."""
    dataset = config.dataset
    size = None if tokens.tokenizer is None else tokenizer_of(tokens.tokenizer, dataset.tokenizer or "").vocabulary
    vocabulary = dataset.classes or size
    if vocabulary is None:
        message = "is the size of the vocabulary, which files of tokens do not state; set 50257 for GPT-2's, or"
        raise UserError(Problem(f"{message} dataset.tokenizer=FILE", "dataset.classes", None))
    if size and size > vocabulary:
        message = f"is less than the {size:,} tokens of the tokenizer; set dataset.classes={size}"
        raise UserError(Problem(message, "dataset.classes", vocabulary))
    return vocabulary


def _both(config: RunConfig, tokens: Tokens) -> Sequence[Images]:
    """Return the sequences of training and validation, without more than the config has; raises as `_sequences`."""
    most = (config.dataset.train_samples, config.dataset.val_samples)
    return [_sequences(config, tokens, *one) for one in zip(SPLITS, most, strict=True)]


def _sequences(config: RunConfig, tokens: Tokens, name: str, most: int | None) -> Images:
    """Return the sequences of a split, at most so many, which have the label 0; raises UserError if there is none."""
    length = config.task.full_size(config)[0]
    images = Images(name, str(tokens.folder), [], Texts(tokens.files[name]), np.zeros(0, np.uint8))
    size = len(Stream([Path(images.root, file) for file in images.names], config.dataset.classes))
    count = (size - 1) // length
    if count < 1:
        message = (
            f"has not {length + 1:,} tokens for {name}, a sequence and the next; add text, or set a lower task.length"
        )
        if not images.names:
            message = f"has files of tokens, but none with {name} in its name; rename or add one"
        elif not size and config.dataset.val_split is not None:
            message = f"has no text for {name}, since dataset.val_split draws whole documents; cut the text into more,"
            message += " or save its end as val.txt and the rest as train.txt in a folder"
        raise UserError(Problem(message, "dataset.path", config.dataset.path or tokens.folder))
    return replace(images, labels=np.zeros(min(count, most or count), np.uint8), seen=len(images.names))


def _check(split: Images, vocabulary: int, report: Report = quiet) -> None:
    """Read all tokens of a split, unless they were read before; raises UserError if one is not in the vocabulary."""
    for file in split.names:
        check_shard(Path(split.root, file), vocabulary, report)


def _reader(images: Images, plan: Plan) -> Reader:
    from launcher.data.text.reader import TokenReader  # note: torch

    dataset = plan.config.dataset
    return TokenReader(images, plan.full_view, tokenizer_in(images.root, dataset.tokenizer), dataset.classes)
