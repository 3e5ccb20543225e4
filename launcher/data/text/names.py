"""The split in the name of a file of text or tokens, by its words between separators; imports no torch."""

import re
from collections.abc import Collection
from pathlib import Path

from launcher.data.sources.layout import VAL, problem

# Names of validation; the first that is there is read.
HELD_OUT = (*VAL[:-1], "dev", "eval", VAL[-1])
_SPLITS = {"train": "train", "training": "train", "testing": "test", **{word: word for word in HELD_OUT}}


def split_of(file: Path, root: Path) -> str | None:
    """Return `train` or the name of validation of the first folder below `root`, or file, with one; else None.

    Raises UserError if a name has two.
    """
    for part in file.relative_to(root).parts:
        words = re.split(r"[\W\d_]+", part.casefold())
        if len(splits := {_SPLITS[word] for word in words if word in _SPLITS}) > 1:
            raise problem(str(file), f"names two splits, {' and '.join(sorted(splits))}; rename {part}")
        if splits:
            return splits.pop()
    return None


def validation_among(splits: Collection[str | None]) -> str | None:
    """Return which of the names of validation is read; None without any."""
    return next((word for word in HELD_OUT if word in splits), None)


def unread(what: str, split: str | None) -> str:
    """Return the reason to skip a file; `what`: text or tokens."""
    return f"files of {what} of " + (f"the split {split}, which is not read" if split else "no split")
