"""Find all files of class folders that cannot be decoded, before a run starts; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from launcher import atomic
from launcher.config.schema import Dataset
from launcher.data.decode import UnreadableImage, decode
from launcher.data.folder import Folder, splits
from launcher.data.sources.source import Report
from launcher.data.workers import in_workers
from launcher.errors import Problem, UserError
from launcher.probe import usable_cores

_IMAGES_A_TASK = 64


def unreadable(path: Path, splits: Sequence[Folder], report: Report) -> dict[str, str]:
    """Return files below `path` that cannot be decoded, with reasons; uses all cores.

    Raises UserError if a worker process was killed.
    """
    files = [f"{split.place}{file}" for split in splits for file in split.files]
    work = partial(_reasons, path)
    # note: starting processes takes longer than reading a few files
    few = len(files) <= _IMAGES_A_TASK
    reasons = zip(files, work(files), strict=True) if few else in_workers(work, files, _IMAGES_A_TASK, usable_cores())
    bad: dict[str, str] = {}
    for number, (file, why) in enumerate(reasons, 1):
        if why is not None:
            bad[file] = why
        report("checking all images", number, len(files))
    return bad


def find_skipped(dataset: Dataset, seed: int, path: Path, report: Report) -> dict[str, str]:
    """Return the images that `dataset.skip_bad` skips, with reasons; none if it is off."""
    if not dataset.skip_bad or dataset.kind == "shapes":
        return {}
    return unreadable(path, splits(path, dataset, seed), report)


def write_skipped(file: Path, skipped: dict[str, str]) -> None:
    """Write the skipped files and reasons, atomically."""
    atomic.write_text(file, json.dumps(skipped, indent=1) + "\n")


def read_skipped(file: Path, dataset: Dataset) -> Collection[str]:
    """Return the files that a run skips; none without `dataset.skip_bad`.

    Raises UserError if the file is missing or damaged.
    """
    if not dataset.skip_bad:
        return ()
    try:
        return frozenset(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        message = f"{file}, the list of skipped images, is missing or damaged; start a new run"
        raise UserError(Problem(message, "dataset.skip_bad", value=True)) from None


def _reasons(path: Path, files: Sequence[str]) -> list[str | None]:
    return [reason(path / file) for file in files]


def reason(file: Path) -> str | None:
    """Return why a file cannot be decoded, or None."""
    try:
        decode(file, upright=False)
    except UnreadableImage as error:
        return str(error)
    return None
