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
from launcher.data.index import Images, Piece
from launcher.data.inspection import skip_notes
from launcher.data.loaders.base import Found, Notes, Opening, Source
from launcher.data.masks.pairs import evaluation_pairs, read_pairs
from launcher.data.masks.values import Masks
from launcher.data.pixel_types import PixelType
from launcher.data.sources.layout import problem
from launcher.data.sources.reading import read
from launcher.data.unreadable import each, reasons
from launcher.data.workers import Report
from launcher.errors import first_few
from launcher.files.cache import cached

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig
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

    def list(self, config: RunConfig, skipped: Collection[str] | None) -> Sequence[Images]:
        return read_pairs(config, skipped or ())

    def find(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Found | None:
        dataset = config.dataset
        if dataset.is_built_in:
            return None
        splits, bad, pixels = _usable(read_pairs(config, skipped or ()), config, None, report)
        names, notes = config.task.names_of(*pixels, dataset.classes), []  # type: ignore[attr-defined]
        for title, counts in zip(("training", "validation"), pixels, strict=True):
            if missing := [name for name, count in zip(names, counts, strict=False) if not count]:
                notes.append(f"no pixel of {first_few(missing)} in the {title} masks")
        images = [replace(one, classes=names) for one in splits]
        return Found(images, str(dataset.path), bad=bad, cannot="used", notes=notes)

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.worker_processes import open_processes  # note: torch

        train, val = opening.images
        return open_processes(opening, train, val)

    def held_out(self, config: RunConfig, classes: Sequence[str], report: Report) -> tuple[Images, Notes]:
        dataset = config.dataset
        assert dataset.test_path is not None
        pairs = evaluation_pairs(dataset.test_path, dataset)
        (images,), bad, _ = _usable([pairs], config, len(classes), report)
        return replace(images, classes=[*classes]), skip_notes(bad, [images], "used")

    def other(self, path: str, plan: Plan, facts: Mapping[str, Any]) -> Images:
        return evaluation_pairs(path, plan.config.dataset)


def _usable(
    splits: Sequence[Images], config: RunConfig, classes: int | None, report: Report
) -> tuple[list[Images], dict[str, str], list[list[int]]]:
    """Return the splits without pairs that cannot be used, these with their reasons, and the pixels of each index.

    classes: their number, if it is known. Raises UserError if some pairs are bad, unless `dataset.skip_bad`.
    """
    dataset = config.dataset
    checked = [_checked(split, config, classes, report) for split in splits]
    results = zip(splits, checked, strict=True)
    bad = {split.names[number]: why for split, one in results for number, why in one.bad.items()}
    if bad and not dataset.skip_bad:
        total = sum(len(split) for split in splits)
        message = f"{len(bad):,} of {count_of(total, 'image')} with masks cannot be used: {reasons(bad)}; "
        remedy = "repair them, or set dataset.skip_bad=true"
        if any(why.endswith(_OTHER_WAY) for why in bad.values()):
            other = str(not dataset.exif_orientation).lower()
            remedy = f"rotate these masks as their images, or set dataset.exif_orientation={other}"
        raise problem(splits[0].root, message + remedy)
    return [split.without(bad) for split in splits], bad, [one.pixels for one in checked]


def _checked(split: Images, config: RunConfig, classes: int | None, report: Report) -> Checked:
    """Read all masks, and the sizes of their images, on all cores; once for equal files."""
    assert split.paths is not None
    assert split.masks is not None
    pairs = [*zip(split.paths, split.masks, strict=True)]
    files = [(name, (stat := os.stat(name)).st_size, stat.st_mtime_ns) for pair in pairs for name in pair]  # noqa: PTH116
    task, pixel_type, upright = config.task, PixelType.of(config.dataset), config.dataset.exif_orientation
    facts = [4, upright, files, str(task), classes, str(pixel_type)]

    def compute() -> Checked:
        pixels, bad = np.zeros(256, np.int64), {}
        masks = Masks.of(task, classes, upright=upright)  # type: ignore[arg-type]
        work = partial(_pixels, masks=masks, pixel_type=pixel_type)
        for number, counts in enumerate(each(work, pairs, report, "checking all masks")):
            if isinstance(counts, UnreadableImage):
                bad[number] = str(counts)
            else:
                pixels += counts
        return Checked(pixels.tolist(), bad)

    return cached("masks", facts, Checked, compute)


def _pixels(pair: tuple[str, str], masks: Masks, pixel_type: PixelType) -> list[int]:
    """Return the pixels of each index of an image's mask; raises UnreadableImage if it does not fit the image."""
    image, mask = pair
    indices = masks.read(read(Piece(mask, mask)))
    if reason := _misfit(read(Piece(image, image)), indices, pixel_type, upright=masks.upright):
        raise UnreadableImage(reason)
    counts: list[int] = np.bincount(indices.reshape(-1), minlength=256).tolist()
    return counts


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
