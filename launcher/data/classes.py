"""The classes of a data set: equal in both splits, at least two, none without training images; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from launcher.errors import Problem, UserError

if TYPE_CHECKING:
    from launcher.data.folder import Folder
    from launcher.data.sources.source import Source

_SHOWN = 5

Split = TypeVar("Split", "Folder", "Source")


def same_classes(train: Split, val: Split) -> tuple[Split, Split]:
    """Both splits with the classes of both, sorted: one that a split lacks must not shift its other labels."""
    classes = sorted({*train.classes, *val.classes})
    numbers = {name: number for number, name in enumerate(classes)}

    def numbered(split: Split) -> Split:
        new = np.array([numbers[name] for name in split.classes], np.int64)
        return replace(split, classes=classes, labels=new[split.labels])

    return numbered(train), numbered(val)


def as_trained(images: Folder, classes: Sequence[str]) -> tuple[Folder, list[str]]:
    """Images with the numbers of a run's classes, matched by name, and notes on classes that only one of them has.

    Folders that are named by numbers alone, as ImageNet-v2's are, are the run's classes of those places, from 0.

    Raises:
        UserError: they have no class in common.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    if all(map(str.isdecimal, images.classes)) and numbers.keys().isdisjoint(images.classes):
        numbers = {str(number): number for number in range(len(classes))}
    new = np.array([numbers.get(name, -1) for name in images.classes], np.int64)[images.labels]
    kept = np.flatnonzero(new >= 0).tolist()
    if not kept:
        shown = f"{', '.join(images.classes[:_SHOWN])} and the run's are {', '.join(classes[:_SHOWN])}"
        message = f"holds no image of a class of the run: its folders are {shown}"
        raise UserError(Problem(message, "dataset.path", images.root))
    notes = []
    if others := [number for number, name in enumerate(images.classes) if name not in numbers]:
        counts = np.bincount(images.labels, minlength=len(images.classes))
        are = "1 folder is no class" if len(others) == 1 else f"{len(others):,} folders are no classes"
        notes.append(f"{are} of the run, and skipped: {_named(images.classes, others, counts, '')}")
    if missing := sorted(set(range(len(classes))) - set(new.tolist())):
        shown = ", ".join(classes[number] for number in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN:,} more" * (len(missing) > _SHOWN)
        notes.append(f"{len(missing):,} of the run's {len(classes):,} classes have no images here: {shown}{more}")
    files = [images.files[number] for number in kept]
    return replace(images, classes=list(classes), files=files, labels=new[kept]), notes


def check_classes(
    classes: Sequence[str], train: np.ndarray, val: np.ndarray, key: str, value: Path | str | int | None
) -> list[str]:
    """Notes on classes that are not evaluated; `train` and `val` are labels int64, `key` is named where it is wrong.

    Raises:
        UserError: there is one class alone, or one without training images.
    """
    if len(classes) < 2:
        message = (
            f"holds one class, {classes[0]}: a model of it has nothing to tell apart and is right always; give at "
            "least two, each in a folder of its own"
        )
        raise UserError(Problem(message, key, value))
    trained, evaluated = (np.bincount(labels, minlength=len(classes)) for labels in (train, val))
    if untrained := np.flatnonzero(trained == 0).tolist():
        message = (
            f"{_number(untrained)} no training images: {_named(classes, untrained, evaluated, 'validation')}; add "
            f"some, or remove {'it' if len(untrained) == 1 else 'them'}"
        )
        raise UserError(Problem(message, key, value))
    if not (unseen := np.flatnonzero(evaluated == 0).tolist()):
        return []
    message = f"{_number(unseen)} no validation images, so that top-1 says nothing of "
    return [message + ("it: " if len(unseen) == 1 else "them: ") + _named(classes, unseen, trained, "training")]


def _number(labels: list[int]) -> str:
    return "1 class has" if len(labels) == 1 else f"{len(labels):,} classes have"


def _named(classes: Sequence[str], labels: list[int], counts: np.ndarray, split: str) -> str:
    shown = ", ".join(
        f"{classes[label]} ({counts[label]:,}{split and f' {split}'} images)" for label in labels[:_SHOWN]
    )
    return shown + f" and {len(labels) - _SHOWN:,} more" * (len(labels) > _SHOWN)
