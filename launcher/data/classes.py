"""Checks of classes: numbers of images, and similar names; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from launcher.errors import Problem, UserError, first_few


def check_classes(
    classes: Sequence[str], train: np.ndarray, val: np.ndarray, key: str, value: Path | str | int | None
) -> list[str]:
    """Return notes on classes that are not evaluated; `train` and `val` are labels int64, errors are about `key`.

    Raises UserError if there is only one class, or a class has no training images.
    """
    if len(classes) < 2:
        message = f"only one class, {classes[0]}; a classifier needs at least two, each in a folder of its own"
        raise UserError(Problem(message, key, value))
    trained, evaluated = (np.bincount(labels, minlength=len(classes)) for labels in (train, val))
    if untrained := np.flatnonzero(trained == 0).tolist():
        message = (
            f"{_number(untrained)} no training images: {named(classes, untrained, evaluated, 'validation')}; add "
            f"some, or remove {'it' if len(untrained) == 1 else 'them'}"
        )
        message = "; ".join([message, *_same_but_for_case(classes)])
        raise UserError(Problem(message, key, value))
    notes = _same_but_for_case(classes)
    if unseen := np.flatnonzero(evaluated == 0).tolist():
        message = f"{_number(unseen)} no validation images, so top-1 does not cover "
        message += "it: " if len(unseen) == 1 else "them: "
        notes.append(message + named(classes, unseen, trained, "training"))
    return notes


def _same_but_for_case(classes: Sequence[str]) -> list[str]:
    """Return a hint if names of classes differ in case only."""
    names: dict[str, list[str]] = {}
    for name in classes:
        names.setdefault(name.casefold(), []).append(name)
    same = [" and ".join(group) for group in names.values() if len(group) > 1]
    return [f"class folders differ in case only: {first_few(same)}; rename them if they are one class"] if same else []


def _number(labels: list[int]) -> str:
    return "1 class has" if len(labels) == 1 else f"{len(labels):,} classes have"


def named(classes: Sequence[str], labels: Sequence[int], counts: np.ndarray, split: str) -> str:
    """Return the first names of classes with their numbers of images."""
    images = f" {split} images" if split else " images"
    return first_few([f"{classes[label]} ({counts[label]:,}{images})" for label in labels])
