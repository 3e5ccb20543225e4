"""Images of class folders that cannot be read: all of them, found before a run starts; imports no torch.

What could be read is remembered in the user's cache by name, size and time of change, so that a second look reads only
what is new, changed or bad.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from launcher import atomic
from launcher.config.schema import Dataset
from launcher.data.decode import UnreadableImage, decode
from launcher.data.folder import Folder, splits
from launcher.data.following import in_workers
from launcher.data.sources.source import Report
from launcher.errors import Problem, UserError
from launcher.paths import cache
from launcher.probe import usable_cores

_IMAGES_A_TASK = 64
# note: one more where other images than before can be read
_VERSION = 1


def unreadable(path: Path, splits: Sequence[Folder], report: Report) -> dict[str, str]:
    """Names below `path` of the images that cannot be decoded, and why; reads with all cores.

    Raises:
        UserError: a worker process was killed.
    """
    files = [f"{split.place}{file}" for split in splits for file in split.files]
    keys = np.array([_key(path, file) for file in files], np.uint64)
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    remembered = cache() / "readable" / f"{place}-{_VERSION}.npy"
    known = np.isin(keys, _load(remembered))
    unknown = np.flatnonzero(~known).tolist()
    parts = [unknown[first : first + _IMAGES_A_TASK] for first in range(0, len(unknown), _IMAGES_A_TASK)]
    tasks = (([str(path / files[number]) for number in part],) for part in parts)
    bad: dict[str, str] = {}
    try:
        # note: a few are read sooner than processes start
        few = len(parts) <= 1
        found = (_reasons(*task) for task in tasks) if few else in_workers(_reasons, tasks, usable_cores())
        for part, reasons in zip(parts, found, strict=True):
            bad |= {files[number]: reason for number, reason in zip(part, reasons, strict=True) if reason}
            known[part] = [reason is None for reason in reasons]
            report("reading all images", part[-1] + 1, len(files))
    finally:
        _save(remembered, keys[known])
    return bad


def find_skipped(dataset: Dataset, seed: int, path: Path, report: Report) -> dict[str, str]:
    """What `dataset.skip_bad` skips of class folders: nothing where it is not set."""
    if not dataset.skip_bad or dataset.kind == "shapes":
        return {}
    return unreadable(path, splits(path, dataset, seed), report)


def write_skipped(file: Path, skipped: dict[str, str]) -> None:
    """Write down which images a run skips, and why, atomically."""
    atomic.write_text(file, json.dumps(skipped, indent=1) + "\n")


def read_skipped(file: Path, dataset: Dataset) -> Collection[str]:
    """The names of the images that a run skips: none without `dataset.skip_bad`.

    Raises:
        UserError: the file is missing or damaged.
    """
    if not dataset.skip_bad:
        return ()
    try:
        return frozenset(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        message = f"{file} is missing or damaged, which says what images the run skips; begin a new run"
        raise UserError(Problem(message, "dataset.skip_bad", value=True)) from None


def _reasons(files: Sequence[str]) -> list[str | None]:
    """Why each file cannot be read, None where it can."""
    return [reason(Path(file)) for file in files]


def reason(file: Path) -> str | None:
    """Why a file cannot be read as an image, None where it can."""
    try:
        decode(file, upright=False)
    except UnreadableImage as error:
        return str(error)
    return None


def _key(path: Path, file: str) -> int:
    """Other for another name, size or time of change; a file that is gone is like no other."""
    try:
        found = (path / file).stat()
        facts = f"{file}\0{found.st_size}\0{found.st_mtime_ns}"
    except OSError:
        facts = f"{file}\0gone"
    return int.from_bytes(hashlib.blake2b(os.fsencode(facts), digest_size=8).digest(), "little")


def _load(remembered: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(remembered), np.uint64)
    except (OSError, ValueError, EOFError):
        return np.zeros(0, np.uint64)


def _save(remembered: Path, keys: np.ndarray) -> None:
    # note: without a cache the next look reads everything again
    with suppress(OSError):
        remembered.parent.mkdir(parents=True, exist_ok=True)
        with atomic.writing(remembered, shared=True) as temporary, temporary.open("wb") as file:
            np.save(file, np.sort(keys))
