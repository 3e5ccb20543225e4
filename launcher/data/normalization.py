"""Mean and standard deviation of the training images by channel, where a config has none; imports no torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.index import Images, Piece
from launcher.data.pixel_types import OtherType, PixelType
from launcher.data.sources.reading import read
from launcher.data.unreadable import each
from launcher.data.workers import Report
from launcher.errors import Problem, UserError, first_few
from launcher.files.cache import cached

if TYPE_CHECKING:
    from launcher.config.schema import Dataset, RunConfig

_DIGITS = 6


class Moments(NamedTuple):
    """Mean and standard deviation by channel."""

    mean: list[float]
    std: list[float]


class _Sums(NamedTuple):
    """Pixels of an image, and sums of values and squares by channel."""

    pixels: int
    values: list[float]
    squares: list[float]


def normalization_problems(dataset: Dataset) -> Iterator[Problem]:
    """Yield what is wrong with the channels of built-in images, or the numbers of `dataset.mean` and `dataset.std`."""
    if not dataset.is_rgb and dataset.is_built_in:
        message = f"dataset={dataset.name} is built in, as 8-bit RGB; set dataset.channels=3 dataset.dtype=uint8"
        yield Problem(message, "dataset.channels", dataset.channels)
        return
    for key, values in (("dataset.mean", dataset.mean), ("dataset.std", dataset.std)):
        if values is not None and len(values) != dataset.channels:
            computed = "or dataset.mean=null dataset.std=null to compute them"
            message = (
                f"has {count_of(len(values), 'number')} for dataset.channels={dataset.channels}; set one per channel"
            )
            yield Problem(f"{message}, {computed}", key, values)


def check_types(config: RunConfig, splits: Sequence[Images]) -> None:
    """Check the channels of the first image of each split, unless all are converted to 8-bit RGB.

    Raises UserError if it has others.
    """
    pixel_type = PixelType.of(config.dataset)
    for split in () if pixel_type.is_rgb else splits:
        if not len(split):
            continue
        try:
            pixel_type.read(read(split.piece(0)), upright=False)
        except OtherType as error:
            message = f"{split.piece(0)}: {error}; set these, or other images"
            raise UserError(Problem(message, "dataset.channels", config.dataset.channels)) from None
        # note: a run reports damaged images
        except UnreadableImage:
            continue


def with_normalization(config: RunConfig, splits: Sequence[Images], report: Report) -> RunConfig:
    """Return the config with mean and deviation of the images of the first split, training, where it has none.

    Raises UserError if an image cannot be read, or no images are listed.
    """
    dataset = config.dataset
    if None not in (dataset.mean, dataset.std):
        return config
    if not splits:
        key = "dataset.mean" if dataset.mean is None else "dataset.std"
        message = (
            "is computed only from images in folders, archives or tables on this machine; set one number per channel"
        )
        raise UserError(Problem(message, key, None))
    moments = _moments(dataset, splits[0], report)
    mean, std = dataset.mean or moments.mean, dataset.std or moments.std
    return replace(config, dataset=replace(dataset, mean=mean, std=std))


def _moments(dataset: Dataset, train: Images, report: Report) -> Moments:
    """Return those of all pixels, once for equal files on this machine."""
    pieces = train.pieces()

    def compute() -> Moments:
        work = partial(_sums, pixel_type=PixelType.of(dataset))
        return _of_sums([*each(work, pieces, report, "computing mean and deviation")], pieces, dataset)

    if train.are_in_bucket:
        return compute()
    files = {piece.file: os.stat(piece.file) for piece in pieces if "://" not in piece.file}  # noqa: PTH116
    stamps = [[name, one.st_size, one.st_mtime_ns] for name, one in files.items()]
    # note: of an archive, the parts of the split differ
    places = [[piece.name, piece.start] for piece in pieces]
    facts = [1, stamps, places, dataset.channels, dataset.dtype, dataset.exif_orientation]
    return cached("normalization", facts, Moments, compute)


def _sums(piece: Piece, pixel_type: PixelType) -> _Sums:
    pixels = pixel_type.read(read(piece), upright=False)
    # note: integers are exact; sums of float32 are in float64
    values = pixels.reshape(-1, pixel_type.channels).astype(np.float64)
    return _Sums(len(values), values.sum(0).tolist(), np.square(values).sum(0).tolist())


def _of_sums(results: Sequence[_Sums | UnreadableImage], pieces: Sequence[Piece], dataset: Dataset) -> Moments:
    """Return the moments of all images, which do not depend on the number of workers."""
    both = zip(pieces, results, strict=True)
    if bad := [f"{piece} ({why})" for piece, why in both if isinstance(why, UnreadableImage)]:
        message = f"{len(bad):,} of {count_of(len(pieces), 'training image')} cannot be read: {first_few(bad)}; repair "
        raise UserError(Problem(f"{message}them, or set dataset.skip_bad=true", "dataset.path", dataset.path))
    counts, *columns = zip(*cast("Sequence[_Sums]", results), strict=True)
    means, squares = ([math.fsum(one) / sum(counts) for one in zip(*column, strict=True)] for column in columns)
    deviations = [math.sqrt(max(0.0, square - mean**2)) for mean, square in zip(means, squares, strict=True)]
    # note: a channel of one value stays as it is
    return Moments(_rounded(means, dataset), [one or 1.0 for one in _rounded(deviations, dataset)])


def _rounded(values: Sequence[float], dataset: Dataset) -> list[float]:
    return [float(f"{value / dataset.largest:.{_DIGITS}g}") for value in values]
