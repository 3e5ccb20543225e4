"""Read all images in workers before a run starts, and find those that cannot be decoded; imports no torch."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from launcher.compute.probe import usable_cores
from launcher.config.schema import Dataset
from launcher.data.decode import UnreadableImage, attempt
from launcher.data.index import Images, Piece
from launcher.data.pixel_types import PixelType
from launcher.data.sources.reading import read
from launcher.data.workers import Report, in_workers
from launcher.errors import Problem, UserError, first_few
from launcher.files import atomic
from launcher.files.disk import patiently

_ITEMS_A_TASK = 32

Item = TypeVar("Item")
Result = TypeVar("Result")


class Fault(NamedTuple):
    """An image that cannot be decoded: its name below the data set's folder, where it is, and the reason."""

    name: str
    piece: Piece
    reason: str


def each(
    work: Callable[[Item], Result], items: Sequence[Item], report: Report, what: str
) -> Iterator[Result | UnreadableImage]:
    """Yield the result of each image, or why it cannot be read, in order, from worker processes on all cores.

    The results must be small, as those of `in_workers`. Raises UserError if a worker was killed.
    """
    attempts = partial(_attempts, work)
    # note: starting processes takes longer than reading a few files
    several = (result for _, result in in_workers(attempts, items, _ITEMS_A_TASK, usable_cores()))
    results = attempts(items) if len(items) <= _ITEMS_A_TASK else several
    for number, result in enumerate(results, 1):
        report(what, number, len(items))
        yield result


def _attempts(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | UnreadableImage]:
    return [attempt(work, item) for item in items]


def faults(splits: Sequence[Images], pixel_type: PixelType, report: Report) -> list[Fault]:
    """Return the images that cannot be decoded; uses all cores.

    Raises UserError if a worker process was killed.
    """
    names = [f"{split.place}{file}" for split in splits for file in split.names]
    pieces = [piece for split in splits for piece in split.pieces()]
    results = zip(names, pieces, each(partial(_decode, pixel_type), pieces, report, "checking all images"), strict=True)
    return [Fault(name, piece, str(why)) for name, piece, why in results if why is not None]


def unreadable(splits: Sequence[Images], pixel_type: PixelType, report: Report) -> dict[str, str]:
    """Return the names of `faults`, with reasons."""
    return {fault.name: fault.reason for fault in faults(splits, pixel_type, report)}


def write_skipped(file: Path, skipped: dict[str, str]) -> None:
    """Write the skipped files and reasons, atomically."""
    atomic.write_text(file, json.dumps(skipped, indent=1) + "\n")


def read_skipped(file: Path, dataset: Dataset) -> Mapping[str, str]:
    """Return the files that a run skips, with reasons; none without `dataset.skip_bad`.

    Raises UserError if the file is missing or damaged, and DiskError if it cannot be read.
    """
    if not dataset.skip_bad:
        return {}
    try:
        return dict(json.loads(patiently(file.read_bytes, file)))
    except (OSError, ValueError, TypeError, RecursionError):
        message = f"{file}, the list of skipped images, is missing or damaged; start a new run"
        raise UserError(Problem(message, "dataset.skip_bad", value=True)) from None


def reason(piece: Piece, pixel_type: PixelType) -> str | None:
    """Return why an image cannot be decoded, or None."""
    why = attempt(partial(_decode, pixel_type), piece)
    return None if why is None else str(why)


def reasons(bad: Mapping[str, str]) -> str:
    """Return the first images with the reasons why they cannot be used."""
    return first_few([f"{file} ({why})" for file, why in bad.items()])


def _decode(pixel_type: PixelType, piece: Piece) -> None:
    pixel_type.read(read(piece), upright=False)
