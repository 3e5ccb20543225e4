"""Find all files of class folders that cannot be decoded, before a run starts; imports no torch."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from launcher.config.schema import Dataset
from launcher.data.decode import UnreadableImage
from launcher.data.index import Images, Piece
from launcher.data.pixel_types import PixelType
from launcher.data.sources.reading import read
from launcher.data.workers import Report, each
from launcher.errors import Problem, UserError
from launcher.files import atomic
from launcher.files.disk import patiently


class Fault(NamedTuple):
    """An image that cannot be decoded: its name below the data set's folder, where it is, and the reason."""

    name: str
    piece: Piece
    reason: str


def faults(splits: Sequence[Images], pixel_type: PixelType, report: Report) -> list[Fault]:
    """Return the images that cannot be decoded; uses all cores.

    Raises UserError if a worker process was killed.
    """
    names = [f"{split.place}{file}" for split in splits for file in split.names]
    pieces = [piece for split in splits for piece in split.pieces()]
    reasons = each(partial(_reasons, pixel_type=pixel_type), pieces, report, "checking all images")
    results = zip(names, pieces, reasons, strict=True)
    return [Fault(name, piece, why) for name, piece, why in results if why is not None]


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


def _reasons(pieces: Sequence[Piece], pixel_type: PixelType) -> list[str | None]:
    return [reason(piece, pixel_type) for piece in pieces]


def reason(piece: Piece, pixel_type: PixelType) -> str | None:
    """Return why an image cannot be decoded, or None."""
    try:
        pixel_type.read(read(piece), upright=False)
    except UnreadableImage as error:
        return str(error)
    return None
