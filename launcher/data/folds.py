"""Cross-validation: the fold of each image, by class and without a group on both sides; imports no torch."""

import itertools
import os
import zlib
from collections.abc import Sequence

import numpy as np

from launcher.compute import randomness
from launcher.config.schema import Dataset
from launcher.data.index import Images
from launcher.data.split import sides
from launcher.errors import Problem, UserError


def held_out_fold(whole: Images, dataset: Dataset, seed: int, *, by_class: bool) -> tuple[Images, Images]:
    """Split off `dataset.fold` of the `dataset.folds` for validation.

    A fold has an equal part of each class, of all images without `by_class`. With `dataset.groups` the images of a
    group are in one fold. The folds depend on the seed and the names of files or groups.

    Raises UserError if there is no such group, or the fold or what remains has no image.
    """
    assert dataset.folds is not None
    labels = np.asarray(whole.labels) if by_class else np.zeros(len(whole), np.int64)
    if dataset.groups is None:
        folds = _by_class(labels, _chances(whole.names, seed), dataset.folds)
    else:
        folds = _by_group(labels, _groups(whole, dataset.groups), seed, dataset.folds)
    in_val = folds == (dataset.fold or 0) - 1
    if in_val.all() or not in_val.any():
        what = "images" if dataset.groups is None else "groups"
        message = f"{whole.root} has too few {what} for so many folds; set a smaller number"
        raise UserError(Problem(message, "dataset.folds", dataset.folds))
    return sides(whole, in_val)


def _chances(names: Sequence[str], seed: int) -> np.ndarray:
    """Return a number in [0, 1) of each name, float64 [N]."""
    numbers = np.array([zlib.crc32(os.fsencode(name)) for name in names], np.int64)
    return randomness.uniforms(seed, "folds", 0, numbers, 1)[:, 0]


def _by_class(labels: np.ndarray, chances: np.ndarray, folds: int) -> np.ndarray:
    """Return the folds of images, int64 [N]: those of a class in the order of their chances, in equal parts.

    A further image moves few others to another fold. Each class starts at another fold, so that the folds are alike.
    """
    result = np.zeros(len(labels), np.int64)
    bounds = np.searchsorted(labels, np.arange(labels.max(initial=-1) + 2)).tolist()
    for number, (first, beyond) in enumerate(itertools.pairwise(bounds)):
        places = np.arange(beyond - first) * folds // max(1, beyond - first)
        result[first + np.argsort(chances[first:beyond], kind="stable")] = (places + number) % folds
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
    for group in np.lexsort((_chances(names.tolist(), seed), -sizes)).tolist():
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
