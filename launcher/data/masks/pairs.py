"""Find images and their masks by equal names in two folders, or in two of each split; imports no torch."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from launcher.config.builtin import images_of
from launcher.data.builtin import ensure_folder
from launcher.data.division import divide
from launcher.data.dropped import NO_IMAGE, Drops, drop
from launcher.data.index import Images, Texts
from launcher.data.listing import files_below, is_folder, is_image, unreadable_path
from launcher.data.masks.values import MaskTask
from launcher.data.pixel_types import ARRAYS, PixelType
from launcher.data.sources.layout import VAL, problem
from launcher.errors import Problem, UserError, first_few

if TYPE_CHECKING:
    from launcher.config.schema import Dataset, RunConfig

IMAGES, MASKS = "images", ("masks", "annotations", "labels")
_SPLITS = {"train": ("train", "training"), "val": VAL}
_NO_MASK, _NO_PARTNER = "images without a mask of their name", "masks without an image of their name"
_HINT = "a folder with train/images, train/masks, val/images and val/masks, or images and masks"


def read_pairs(config: RunConfig, skipped: Collection[str] = ()) -> tuple[Images, Images]:
    """Find the images with masks of training and validation, without those `skipped`.

    Raises UserError if a folder is missing, has no image with a mask, or several of one name.
    """
    dataset = config.dataset
    if dataset.path is None and not dataset.is_built_in:
        raise UserError(Problem(f"missing; set {_HINT}", "dataset.path", None))
    root = ensure_folder(dataset)
    if not is_folder(root):
        raise UserError(Problem(f"not a folder; set {_HINT}", "dataset.path", dataset.path))
    if dataset.is_divided:
        images = [_whole(root, dataset)]
    elif "" in _folders(root):
        raise problem(root, "is not divided into training and validation; set dataset.val_split=0.1")
    else:
        images = [split_of(root, split, dataset) for split in ("train", "val")]
    # note: all pairs are divided, since the bad ones are found later
    train, val = divide(images, dataset, config.seed, by_class=False)
    train, val = (replace(one.without(skipped), classes=class_names(config)) for one in (train, val))
    return train, val


def check_without_masks(path: str) -> None:
    """Raise UserError if a folder has images and masks, not labels of other kinds such as YOLO's text files."""
    masks = [folder for _, folder in _folders(Path(path)).values()]
    files = (file for one in masks for _, _, names in os.walk(Path(path, one)) for file in names)
    if any(is_image(file, ARRAYS) for file in files):
        raise problem(path, "has folders of images and masks; set recipe=small_segmentation")


def check_reads_masks(config: RunConfig) -> None:
    """Raise UserError if a segmentation has a data loader of labels."""
    if config.task.labelled == "pixels" and config.dataloader.gives == "label":
        message = f"reads no masks, which task={config.task.name} needs; set recipe=small_segmentation, or masks"
        raise UserError(Problem(message, "dataloader", config.dataloader.name))


def class_names(config: RunConfig) -> list[str]:
    """Return the names of a run's classes: numbers without others; empty before these are counted."""
    task: MaskTask = config.task  # type: ignore[assignment]
    if config.dataset.is_built_in:
        return images_of(config.dataset.kind).labels(config.dataset).names
    return [*task.classes] if task.classes else [*map(str, range(config.dataset.classes or 0))]


def evaluation_pairs(path: str, dataset: Dataset) -> Images:
    """Return the images with masks of a path to evaluate: its validation images, or all if it is not divided."""
    root = Path(path)
    return split_of(root, "val", dataset) if "val" in _folders(root) else replace(_whole(root, dataset), split="val")


def split_of(root: Path, split: str, dataset: Dataset) -> Images:
    """Return the pairs of a split; raises as `read_pairs`."""
    folders = _folders(root).get(split)
    if folders is None:
        raise problem(root, f"has no {split} images with masks; set {_HINT}")
    return _pairs(root, split, folders, dataset)


def _whole(root: Path, dataset: Dataset) -> Images:
    """Return the pairs of a folder that is not divided; raises UserError if it is."""
    folders = _folders(root).get("")
    if folders is None:
        key = "val_split" if dataset.folds is None else "folds"
        raise problem(root, f"has no folders images and masks; remove dataset.{key} if it is divided")
    return _pairs(root, "train", folders, dataset)


def _folders(root: Path) -> dict[str, tuple[str, str]]:
    """Return the folders of images and masks within a data set, by split; by an empty name if it has no splits."""
    found: dict[str, tuple[str, str]] = {}
    for masks in MASKS:
        for split, names in _SPLITS.items():
            for name in names:
                for one, other in ((f"{name}/{IMAGES}", f"{name}/{masks}"), (f"{IMAGES}/{name}", f"{masks}/{name}")):
                    if is_folder(root / one) and is_folder(root / other):
                        found.setdefault(split, (one, other))
        if not found and is_folder(root / IMAGES) and is_folder(root / masks):
            return {"": (IMAGES, masks)}
    return found


def _pairs(root: Path, split: str, folders: tuple[str, str], dataset: Dataset) -> Images:
    """Match the files of two folders by their paths without extension; a mask may end in `_mask`."""
    drops: Drops = {}
    pixels = _by_stem(root, folders[0], dataset.links, drops, PixelType.of(dataset).extensions)
    annotated = _by_stem(root, folders[1], dataset.links, drops, ARRAYS)
    annotated = {stem.removesuffix("_mask") if stem not in pixels else stem: one for stem, one in annotated.items()}
    for reason, ours, theirs in ((_NO_MASK, pixels, annotated), (_NO_PARTNER, annotated, pixels)):
        if lonely := [file for stem, file in ours.items() if stem not in theirs]:
            drop(drops, reason, lonely[0], len(lonely))
    stems = sorted(pixels.keys() & annotated.keys())
    if not stems:
        example = f"; {first_few([*pixels.values()], 1)} has none" if pixels else ""
        raise problem(root, f"has no image of {folders[0]} with a mask of its name in {folders[1]}{example}")
    paths, masks = (Texts(f"{root}/{one[stem]}" for stem in stems) for one in (pixels, annotated))
    labels, seen = np.zeros(len(stems), np.int64), len(pixels) + len(annotated)
    names = Texts(pixels[stem] for stem in stems)
    return Images(split, str(root), [], names, labels, paths=paths, masks=masks, seen=seen, dropped=drops)


def _by_stem(root: Path, folder: str, links: str, drops: Drops, more: tuple[str, ...]) -> dict[str, str]:
    """Return the images below a folder, and files of more extensions, by their paths in it without extension.

    Raises UserError if two have the same, or the folder cannot be read.
    """
    try:
        inside = None if links == "follow" else f"{os.path.realpath(root / folder)}{os.sep}"
        files = files_below(root, folder, inside, drops)
    except OSError as error:
        raise problem(root, unreadable_path(error)) from None
    stems: dict[str, str] = {}
    for file in files:
        if not is_image(file, more):
            drop(drops, NO_IMAGE, file)
            continue
        stem = os.path.splitext(file.removeprefix(f"{folder}/"))[0]  # noqa: PTH122 - of a million files
        if stem in stems:
            raise problem(root, f"has two files of one name, {stems[stem]} and {file}; remove one")
        stems[stem] = file
    return stems
