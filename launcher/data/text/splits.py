"""The splits of files of tokens as sequences, their counts and identity; imports no torch."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.dropped import notes_on
from launcher.data.identity import fingerprint, of_splits
from launcher.data.index import Images, Texts
from launcher.data.inspection import Inspection
from launcher.data.text.prepare import SPLITS, Tokens
from launcher.data.text.shards import Stream, check_shard
from launcher.data.text.tokenizer import tokenizer_of
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, UserError


def counted(config: RunConfig, tokens: Tokens, report: Report) -> Inspection:
    """Return an inspection with the vocabulary and the sequences of both splits.

    Raises UserError if a split has no sequence, or the vocabulary is unknown or lacks a token.
    """
    dataset, notes = config.dataset, notes_on(tokens.dropped)
    size = None if tokens.tokenizer is None else tokenizer_of(tokens.tokenizer, dataset.tokenizer or "").vocabulary
    vocabulary = dataset.classes or size
    if vocabulary is None:
        message = "is the size of the vocabulary, which files of tokens do not state; set 50257 for GPT-2's, or"
        raise UserError(Problem(f"{message} dataset.tokenizer=FILE", "dataset.classes", None))
    if size and size > vocabulary:
        message = f"is less than the {size:,} tokens of the tokenizer; set dataset.classes={size}"
        raise UserError(Problem(message, "dataset.classes", vocabulary))
    dataset = replace(dataset, classes=vocabulary)
    config = replace(config, dataset=dataset)
    listed = splits(config, tokens)
    for split in listed:
        check_tokens(split, vocabulary, report)
    for split, wanted in zip(listed, (dataset.train_samples, dataset.val_samples), strict=True):
        if wanted and wanted > len(split.labels):
            has = f"{count_of(len(split.labels), 'sequence')} of {count_of(config.task.full_size(config)[0], 'token')}"
            key = f"dataset.{split.split}_samples={wanted}"
            notes.append(f"{tokens.folder} has only {has} for {split.split}, not {key}")
    if tokens.extensions:
        notes.append(f"the text is of several kinds of files: {tokens.extensions}")
    train, val = (len(split.labels) for split in listed)
    sizes = replace(dataset, train_samples=train, val_samples=val)
    return Inspection(replace(config, dataset=sizes), notes, splits=listed)


def check_tokens(split: Images, vocabulary: int, report: Report = quiet) -> None:
    """Read all tokens of a split, unless they were read before; raises UserError if one is not in the vocabulary."""
    for file in split.names:
        check_shard(Path(split.root, file), vocabulary, report)


def splits(config: RunConfig, tokens: Tokens) -> list[Images]:
    """Return the sequences of training and validation, without more than the config has; raises as `sequences`."""
    most = (config.dataset.train_samples, config.dataset.val_samples)
    return [sequences(config, tokens, *one) for one in zip(SPLITS, most, strict=True)]


def sequences(config: RunConfig, tokens: Tokens, name: str, most: int | None) -> Images:
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


def identity_of(tokens: Tokens) -> str:
    """Return the hash of the text and tokenizer, or of the names and sizes of other programs' files."""
    files = ([(name, (tokens.folder / name).stat().st_size) for name in tokens.files[split]] for split in SPLITS)
    return tokens.key or of_splits(*map(fingerprint, files))
