"""The splits of files of tokens as sequences, their counts and identity; imports no torch."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.dropped import notes_on
from launcher.data.identity import fingerprint, of_splits
from launcher.data.inspection import Inspection
from launcher.data.split import Split
from launcher.data.text.prepare import SPLITS, Tokens
from launcher.data.text.shards import Stream
from launcher.data.text.tokenizer import tokenizer_of
from launcher.errors import Problem, UserError

_CHECKED = 1 << 20  # tokens of a split


def counted(config: RunConfig, tokens: Tokens) -> Inspection:
    """Return an inspection with the vocabulary and the sequences of both splits.

    Raises UserError if a split has no sequence, or the vocabulary is unknown or lacks a token.
    """
    dataset, notes = config.dataset, notes_on(tokens.dropped)
    size = None if tokens.tokenizer is None else tokenizer_of(tokens.tokenizer, dataset.tokenizer or "").vocabulary
    vocabulary = dataset.classes or size
    if vocabulary is None:
        message = "is the size of the vocabulary, which files of tokens do not state; set 50257 for GPT-2's, or"
        raise UserError(Problem(f"{message} dataset.tokenizer=FILE", "dataset.classes", None))
    listed = splits(config, tokens)
    for split, wanted in zip(listed, (dataset.train_samples, dataset.val_samples), strict=True):
        stream = _stream(split)
        highest = max(size or 0, int(stream.read(0, min(_CHECKED, len(stream))).max()) + 1)
        if highest > vocabulary:
            message = f"{tokens.folder} has {highest:,} different tokens; set dataset.classes={highest}"
            raise UserError(Problem(message, "dataset.classes", vocabulary))
        if wanted and wanted > len(split.labels):
            has = f"{count_of(len(split.labels), 'sequence')} of {count_of(config.task.full_view(config), 'token')}"
            key = f"dataset.{split.split}_samples={wanted}"
            notes.append(f"{tokens.folder} has only {has} for {split.split}, not {key}")
    if tokens.trigram:
        notes.append(f"a trigram model of these bytes has a perplexity of {tokens.trigram:.2f} on the validation text")
    train, val = (len(split.labels) for split in listed)
    sizes = replace(dataset, classes=vocabulary, train_samples=train, val_samples=val)
    return Inspection(replace(config, dataset=sizes), notes, splits=listed)


def splits(config: RunConfig, tokens: Tokens) -> list[Split]:
    """Return the sequences of training and validation, without more than the config has; raises as `sequences`."""
    most = (config.dataset.train_samples, config.dataset.val_samples)
    return [sequences(config, tokens, *one) for one in zip(SPLITS, most, strict=True)]


def sequences(config: RunConfig, tokens: Tokens, name: str, most: int | None) -> Split:
    """Return the sequences of a split, at most so many, which have the label 0; raises UserError if there is none."""
    length = config.task.full_view(config)
    folder = Split(str(tokens.folder), name, [], tokens.files[name], np.zeros(0, np.uint8))
    count = (len(_stream(folder)) - 1) // length
    if count < 1:
        message = f"has not {length + 1:,} tokens for {name}, a sequence and the next token; set a lower task.length"
        raise UserError(Problem(message, "dataset.path", config.dataset.path or tokens.folder))
    return replace(folder, labels=np.zeros(min(count, most or count), np.uint8), seen=len(folder.files))


def identity_of(tokens: Tokens) -> str:
    """Return the hash of the text and tokenizer, or of the names and sizes of other programs' files."""
    files = ([(name, (tokens.folder / name).stat().st_size) for name in tokens.files[split]] for split in SPLITS)
    return tokens.key or of_splits(*map(fingerprint, files))


def _stream(split: Split) -> Stream:
    return Stream([Path(split.root, file) for file in split.files])
