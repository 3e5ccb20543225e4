"""Check all masks of a data set before a run, once, and count its classes and their pixels; imports no torch."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.dropped import UNREADABLE, notes_on
from launcher.data.identity import of_source
from launcher.data.index import Images, Piece
from launcher.data.inspection import Inspection, built_in, counted
from launcher.data.loaders.base import Notes, Opening, Source
from launcher.data.masks.pairs import evaluation_pairs, read_pairs
from launcher.data.masks.values import Masks, MaskTask
from launcher.data.pixel_types import PixelType
from launcher.data.sources.reading import read
from launcher.data.split import without
from launcher.data.workers import Report, each
from launcher.errors import Problem, UserError, first_few
from launcher.files.cache import cached

if TYPE_CHECKING:
    from launcher.config.schema import Dataset, RunConfig
    from launcher.data.images import Reader
    from launcher.plan.plan import Plan

# The end of the reason for a mask of an image before its EXIF rotation, or after it where that is off.
_OTHER_WAY = ", which EXIF rotates"


class Checked(NamedTuple):
    """What all pairs of a split have: pixels of each index, and the numbers of bad pairs with the reason."""

    pixels: list[int]
    bad: dict[int, str]


class Pairs(Source):
    """Images with masks, which are all read once before a run."""

    def list(self, config: RunConfig, skipped: Collection[str]) -> Sequence[Images]:
        return read_pairs(config, skipped)

    def inspect(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Inspection:
        dataset = config.dataset
        if dataset.is_built_in:
            return built_in(config)
        splits = read_pairs(config, skipped or ())
        task: MaskTask = config.task  # type: ignore[assignment]
        checked = [check_pairs(split, task, None, dataset, report) for split in splits]
        (train, val), bad, notes = _usable(splits, checked, dataset, "dataset.path")
        names = task.names_of(checked[0].pixels, checked[1].pixels, dataset.classes)
        for title, result in zip(("training", "validation"), checked, strict=True):
            if missing := [name for name, pixels in zip(names, result.pixels, strict=False) if not pixels]:
                notes.append(f"no pixel of {first_few(missing)} in the {title} masks")
        counts = len(names), len(train), len(val)
        inspection = counted(config, str(dataset.path), counts, notes)
        return replace(inspection, skipped=bad, classes=names, splits=(train, val))

    def identity(self, config: RunConfig, skipped: Collection[str] | None, images: Sequence[Images]) -> str:
        return of_source(config, lambda: images[:2] or read_pairs(config, skipped or ()))

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.worker_processes import open_processes  # note: torch

        train, val = opening.images
        return open_processes(opening, train, val)

    def held_out(self, config: RunConfig, classes: Sequence[str], report: Report) -> tuple[Images, Notes]:
        dataset, task = config.dataset, config.task
        assert dataset.test_path is not None
        pairs = evaluation_pairs(dataset.test_path, dataset)
        checked = check_pairs(pairs, task, len(classes), dataset, report)  # type: ignore[arg-type]
        (images,), _, notes = _usable([pairs], [checked], dataset, "dataset.test_path")
        return replace(images, classes=[*classes]), notes

    def other(self, path: str, plan: Plan, facts: Mapping[str, Any]) -> Images:
        return evaluation_pairs(path, plan.config.dataset)


def _usable(
    splits: Sequence[Images], checked: Sequence[Checked], dataset: Dataset, key: str
) -> tuple[list[Images], dict[str, str], list[str]]:
    """Return the splits without pairs that cannot be used, these with their reasons, and notes.

    Raises UserError about the key of their path if there are some, unless `dataset.skip_bad`, or no others.
    """
    path = getattr(dataset, key.rpartition(".")[2])
    results = zip(splits, checked, strict=True)
    bad = {split.names[number]: why for split, one in results for number, why in one.bad.items()}
    shown = first_few([f"{file} ({why})" for file, why in bad.items()])
    if bad and not dataset.skip_bad:
        total = sum(len(split) for split in splits)
        message = f"{len(bad):,} of {count_of(total, 'image')} with masks cannot be used: {shown}; "
        remedy = "repair them, or set dataset.skip_bad=true"
        if any(why.endswith(_OTHER_WAY) for why in bad.values()):
            other = str(not dataset.exif_orientation).lower()
            remedy = f"rotate these masks as their images, or set dataset.exif_orientation={other}"
        raise UserError(Problem(message + remedy, key, path))
    usable = [without(split, bad) for split in splits]
    for split in usable:
        if not split.names:
            message = f"has no {split.split} image with a mask that can be read; repair some"
            raise UserError(Problem(message, key, path))
    notes = notes_on(*({k: v for k, v in one.dropped.items() if k != UNREADABLE or not bad} for one in usable))
    if bad:
        notes.append(f"dataset.skip_bad=true: skipping {count_of(len(bad), 'image')} that cannot be used: {shown}")
    return usable, bad, notes


def check_pairs(split: Images, task: MaskTask, classes: int | None, dataset: Dataset, report: Report) -> Checked:
    """Read all masks, and the sizes of their images, on all cores; once for equal files.

    classes: their number, if it is known.
    """
    assert split.paths is not None
    assert split.masks is not None
    pairs = [*zip(split.paths, split.masks, strict=True)]
    files = [(name, (stat := os.stat(name)).st_size, stat.st_mtime_ns) for pair in pairs for name in pair]  # noqa: PTH116
    pixel_type, upright = PixelType.of(dataset), dataset.exif_orientation
    facts = [
        3,
        upright,
        files,
        str(task),
        *([] if classes is None else [classes]),
        *([] if pixel_type.is_rgb else [str(pixel_type)]),
    ]

    def compute() -> Checked:
        pixels, bad = np.zeros(256, np.int64), {}
        work = partial(_examined, masks=Masks.of(task, classes, upright=upright), pixel_type=pixel_type)
        for number, (reason, counts) in enumerate(each(work, pairs, report, "checking all masks")):
            if reason is not None:
                bad[number] = reason
            pixels += counts
        return Checked(pixels.tolist(), bad)

    return cached("masks", facts, Checked, compute)


def _examined(
    pairs: Sequence[tuple[str, str]], masks: Masks, pixel_type: PixelType
) -> list[tuple[str | None, list[int]]]:
    """Return for each image with its mask why it cannot be used, or None, and the pixels of each index."""
    results: list[tuple[str | None, list[int]]] = []
    for image, mask in pairs:
        try:
            indices = masks.read(read(Piece(mask, mask)))
            reason = _misfit(read(Piece(image, image)), indices, pixel_type, upright=masks.upright)
            counts = np.bincount(indices.reshape(-1), minlength=256)
        except UnreadableImage as error:
            reason, counts = str(error), np.zeros(256, np.int64)
        results.append((reason, counts.tolist()))
    return results


def _misfit(image: bytes, mask: np.ndarray, pixel_type: PixelType, *, upright: bool) -> str | None:
    """Return `mismatch` of an image's file, with `_OTHER_WAY` if EXIF rotation explains it."""
    reason = mismatch(pixel_type.edges(image, upright=upright), mask)
    if reason is None or mismatch(pixel_type.edges(image, upright=not upright), mask):
        return reason
    return f"{reason}{' of the stored pixels' if upright else ' of the upright image'}{_OTHER_WAY}"


def mismatch(shape: Sequence[int], mask: np.ndarray) -> str | None:
    """Return why an image of this height and width has another mask; None if they are equal."""
    if tuple(shape[:2]) == mask.shape:
        return None
    return f"the image has {shape[1]} x {shape[0]} px, its mask {mask.shape[1]} x {mask.shape[0]}"
