"""Divide images into those for training and validation: by folders, a fraction, or cross-validation; imports no torch.

Classes keep their parts, and groups are on one side.
"""

import itertools
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from launcher.compute import randomness
from launcher.config.schema import Dataset
from launcher.data.class_names import in_order
from launcher.data.classes import places_in
from launcher.data.index import Images
from launcher.errors import Problem, UserError


def divide(images: Sequence[Images], dataset: Dataset, seed: int, *, by_class: bool) -> tuple[Images, Images]:
    """Return training and validation images: the two that are listed, or parts of the one, by a data set's keys.

    A part of each class is held out, or of all images without `by_class`: the fraction `dataset.val_split`, at least
    one image but never all, or `dataset.fold` of the `dataset.folds`. Images of one of the `dataset.groups` are in one
    fold. The choice depends on the seed and the names of files or groups, so a further image changes little.

    Raises UserError if there is no such group, or a part has no image.
    """
    if not dataset.is_divided:
        train, val = images
        return same_classes(train, val)
    (whole,) = images
    labels = whole.labels if by_class else np.zeros(len(whole), np.int64)
    if dataset.val_split is not None:
        in_val = _fraction(labels, _chances(whole.names, seed, "val_split"), dataset.val_split)
        if not in_val.any():
            message = f"{whole.root} has one image{' of each class' * by_class}, so none is left to validate on; "
            raise UserError(Problem(f"{message}add images, or a val/ folder", "dataset.val_split", dataset.val_split))
        return _sides(whole, in_val)
    assert dataset.folds is not None
    if dataset.groups is None:
        folds = _by_class(labels, _chances(whole.names, seed, "folds"), dataset.folds)
    else:
        folds = _by_group(labels, _groups(whole, dataset.groups), seed, dataset.folds)
    in_val = folds == (dataset.fold or 0) - 1
    if in_val.all() or not in_val.any():
        what = "images" if dataset.groups is None else "groups"
        message = f"{whole.root} has too few {what} for so many folds; set a smaller number"
        raise UserError(Problem(message, "dataset.folds", dataset.folds))
    return _sides(whole, in_val)


def same_classes(train: Images, val: Images) -> tuple[Images, Images]:
    """Relabel both splits by their common classes, so that a class missing in one does not shift its labels.

    The order is that of the split which has all classes, else that of their names.
    """
    if train.classes == val.classes:
        return train, val
    whole = (one.classes for one in (train, val) if {*one.classes}.issuperset(train.classes + val.classes))
    classes = next(whole, None) or in_order([*train.classes, *val.classes])
    train, val = (
        replace(one, classes=classes, labels=places_in(one.classes, classes)[one.labels]) for one in (train, val)
    )
    return train, val


def _sides(whole: Images, in_val: np.ndarray) -> tuple[Images, Images]:
    """Return the images for training, and those for validation, where `in_val`, bool [N], is true."""
    whole = replace(whole, groups=None)
    train, val = whole.part(~in_val), replace(whole.part(in_val), split="val", dropped={})
    # note: what is dropped counts for the training images
    return replace(train, seen=whole.seen - len(val)), replace(val, seen=len(val))


def _chances(names: Sequence[str], seed: int, purpose: str) -> np.ndarray:
    """Return a number in [0, 1) of each name, float64 [N]."""
    numbers = np.array([zlib.crc32(os.fsencode(name)) for name in names], np.int64)
    return randomness.uniforms(seed, purpose, 0, numbers, 1)[:, 0]


def _in_turn(labels: np.ndarray, chances: np.ndarray) -> list[np.ndarray]:
    """Return the images of each class by number, in the order of their chances; `labels` ascend."""
    bounds = np.searchsorted(labels, np.arange(labels.max(initial=-1) + 2)).tolist()
    return [first + np.argsort(chances[first:beyond], kind="stable") for first, beyond in itertools.pairwise(bounds)]


def _fraction(labels: np.ndarray, chances: np.ndarray, fraction: float) -> np.ndarray:
    """Return which images are held out, bool [N]: at least one of each class, but never all."""
    in_val = np.zeros(len(labels), bool)
    for images in _in_turn(labels, chances):
        in_val[images[: max(0, min(max(1, round(fraction * len(images))), len(images) - 1))]] = True
    return in_val


def _by_class(labels: np.ndarray, chances: np.ndarray, folds: int) -> np.ndarray:
    """Return the folds of images, int64 [N]: those of a class in equal parts.

    Each class starts at another fold, so that the folds are alike.
    """
    result = np.zeros(len(labels), np.int64)
    for number, images in enumerate(_in_turn(labels, chances)):
        result[images] = (np.arange(len(images)) * folds // max(1, len(images)) + number) % folds
    return result


def _by_group(labels: np.ndarray, groups: Sequence[str], seed: int, folds: int) -> np.ndarray:
    """Return the folds of images, int64 [N].

    Groups are placed one by one, the largest first, those of similar size by their chances: each into the fold where
    the shares of the classes then differ least over the folds.
    """
    names, of_image = np.unique(np.array(groups, dtype=object).astype(str), return_inverse=True)
    classes = int(labels.max(initial=0)) + 1
    counts = np.zeros((len(names), classes))
    np.add.at(counts, (of_image, labels), 1)
    shares = counts / np.maximum(1, counts.sum(0))
    filled, images = np.zeros((folds, classes)), np.zeros(folds)
    of_group = np.zeros(len(names), np.int64)
    sizes = np.floor(np.log2(counts.sum(1)))
    for group in np.lexsort((_chances(names.tolist(), seed, "folds"), -sizes)).tolist():
        # note: what the square of the shares grows by, but for a constant
        growth = filled @ shares[group]
        fold = min(range(folds), key=lambda one: (growth[one], images[one]))
        of_group[group] = fold
        filled[fold] += shares[group]
        images[fold] += counts[group].sum()
    return of_group[of_image]


def _groups(whole: Images, groups: int | str) -> Sequence[str]:
    """Return the group of each image: its value in a column of the table, or its folder at a level below the class."""
    if isinstance(groups, str):
        if whole.groups is None:
            message = "only tables (.csv .tsv .jsonl) have columns; set a level of folders, such as dataset.groups=1"
            raise UserError(Problem(message, "dataset.groups", groups))
        return whole.groups
    folders = [os.fsdecode(file).split("/")[1:-1] for file in whole.names]
    if lacking := [number for number, parts in enumerate(folders) if len(parts) < groups]:
        message = f"{whole.root} has images without such a folder below their class, such as "
        message += f"{whole.names[lacking[0]]}; move them, set another level, or a column of a table"
        raise UserError(Problem(message, "dataset.groups", groups))
    return [parts[groups - 1] for parts in folders]
