"""Checks of classes: numbers of images, and similar names; imports no torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from launcher.config.schema import RunConfig
from launcher.config.tasks import TaskConfig
from launcher.counts import count_of
from launcher.data.class_names import composed
from launcher.errors import Problem, UserError, first_few, shown

# Note classes if the largest has so many times the images of the smallest.
_UNEQUAL = 10
# By the keywords of losses: the key, and what its values do.
_IN_LOSS = {
    "weights": ("class_weights", "weighs"),
    "pos_weight": ("pos_weight", "weighs the presence of"),
    "added": ("logit_adjustment", "shifts the logit of"),
}
_TYPES = {"class": np.int64, "classes": np.uint8, "numbers": np.float32}


def read_labels(config: RunConfig, texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the names of a task's classes or numbers, and its label of each text: int64 [T], or rows [T, names].

    Rows are uint8 for several classes an image, float32 for numbers. Raises UserError if a text is no such label.
    """
    names, rows = config.task.read_labels(texts, config.dataset.columns)
    return names, np.array(rows, _TYPES[config.task.labelled])


def blank_labels(task: TaskConfig, outputs: int) -> np.ndarray:
    """Return a label for each output of a task, as `read_labels` does: that class or number alone."""
    kind = _TYPES[task.labelled]
    return np.arange(outputs) if task.labelled == "class" else np.eye(outputs, dtype=kind)


def places_in(names: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Return the places of names among classes, int64 [N]; -1 for another name.

    Numbers also match those of earlier runs, which have at least four digits, such as 0007 for 7.
    """
    places = {composed(name): number for number, name in enumerate(classes)}
    texts = [*map(composed, names)]
    padded = {text: text.zfill(4) for text in texts if text.isdecimal() and text.zfill(4) not in texts}
    return np.array([places.get(text, places.get(padded.get(text, text), -1)) for text in texts], np.int64)


def are_places(names: Sequence[str], classes: Sequence[str]) -> bool:
    """Return whether names are places of classes from zero on, as ImageNet-v2's: all numbers, and no class is one."""
    if any(map(str.isdecimal, classes)) or not all(map(str.isdecimal, names)):
        return False
    return all(int(name) < len(classes) for name in names)


def in_classes_of(
    run: Sequence[str] | None, names: list[str], labels: np.ndarray, path: object
) -> tuple[list[str], np.ndarray]:
    """Return the classes that a run has, and labels of them instead of `names`; both unchanged without a run.

    Raises UserError if the run has other classes.
    """
    if run is None or [*run] == names:
        return names, labels
    places = places_in(names, run)
    if sorted(places.tolist()) != [*range(len(run))]:
        other = [name for name, place in zip(names, places.tolist(), strict=True) if place < 0]
        missing = [run[place] for place in range(len(run)) if place not in places]
        message = (
            f"other classes than the run's: new {first_few(other) or 'none'}, missing {first_few(missing) or 'none'}"
        )
        raise UserError(Problem(f"{message}; restore them, or start a new run", "dataset.path", path))
    return [*run], moved(labels, places, len(run))


def moved(labels: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """Return labels, int64 [N] or rows [N, K], by the `places` of their names among `count` others."""
    if labels.ndim == 1:
        return np.asarray(places[labels])
    rows = np.zeros((len(labels), count), labels.dtype)
    rows[:, places[places >= 0]] = labels[:, places >= 0]
    return rows


def class_counts(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of images of each class, int64 [C], from labels int64 [N] or rows uint8 [N, C]."""
    return labels.sum(0, dtype=np.int64) if labels.ndim == 2 else np.bincount(labels, minlength=classes)


def imbalance_notes(config: RunConfig, classes: Sequence[str], counts: np.ndarray, images: int) -> list[str]:
    """Return a note if the largest class has ten times the training images of the smallest, with the remedies."""
    low, high = int(counts.argmin()), int(counts.argmax())
    if counts[high] < _UNEQUAL * counts[low]:
        return []
    facts = f"the largest class, {classes[high]}, has {count_of(counts[high], 'training image')}"
    facts += f" and the smallest, {classes[low]}"
    used = []
    if config.dataset.sampling == "balanced":
        times = counts.sum() / len(counts) / counts[low]
        used.append(f"dataset.sampling=balanced draws an image of {classes[low]} {times:.2g} times an epoch")
    for keyword, values in config.loss.of_classes(counts, images).items():
        name, verb = _IN_LOSS[keyword]
        kind = getattr(config.loss, name)
        key = f"loss.{name}" if isinstance(kind, list) else f"loss.{name}={shown(kind)}"
        if len(values) == len(counts):
            used.append(f"{key} {verb} {classes[high]} by {values[high]:.2g} and {classes[low]} by {values[low]:.2g}")
    if not used:
        used = ["loss.class_weights=auto weighs rare classes more", "dataset.sampling=balanced draws them more often"]
        end = "; metric=balanced_accuracy counts each class equally"
        if config.task.labelled == "classes":
            used, end = used[:1], ""
        return [f"{facts}, {counts[low]:,}: {', '.join(used)}{end}"]
    return [f"{facts}, {counts[low]:,}: {' and '.join(used)}{'; one of them is enough' if len(used) > 1 else ''}"]


def check_labels(
    config: RunConfig,
    names: Sequence[str],
    train: np.ndarray,
    val: np.ndarray,
    key: str,
    value: Path | str | int | None,
) -> list[str]:
    """Return notes on the labels of training and validation images, for any task; raises as `check_classes`."""
    if not names or config.task.labelled in ("numbers", "pixels"):
        return []
    notes, separator = check_classes(names, train, val, key, value), config.dataset.columns.separator
    if joined := [name for name in names if separator in name]:
        example = f"such as {joined[0]}; set task=multilabel for multi-label classification"
        notes.append(f"{_number(joined)} names joined by dataset.columns.separator={separator}, {example}")
    return notes + imbalance_notes(config, names, class_counts(train, len(names)), len(train))


def check_classes(
    classes: Sequence[str], train: np.ndarray, val: np.ndarray, key: str, value: Path | str | int | None
) -> list[str]:
    """Return notes on classes that are not evaluated; `train` and `val` are labels, errors are about `key`.

    Raises UserError if there is only one class, or a class has no training images.
    """
    if len(classes) < 2:
        message = f"only one class, {classes[0]}; a classifier needs at least two, each in a folder of its own"
        raise UserError(Problem(message, key, value))
    trained, evaluated = (class_counts(labels, len(classes)) for labels in (train, val))
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


def _number(labels: Sequence[object]) -> str:
    return f"{count_of(len(labels), 'class')} {'has' if len(labels) == 1 else 'have'}"


def named(classes: Sequence[str], labels: Sequence[int], counts: np.ndarray, split: str) -> str:
    """Return the first names of classes with their numbers of images."""
    image = f"{split} image".strip()
    return first_few([f"{classes[label]} ({count_of(counts[label], image)})" for label in labels])
