"""Pictures in class folders: `PATH/train/CLASS/*.jpg` and `PATH/val/CLASS/*.jpg`; imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from launcher.errors import Problem, UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
TAR = ".tar"
_ONLY_PREPARED = ", or train prepare, which reads ImageNet's tar files, and then dataloader=ffcv"


@dataclass(frozen=True)
class Folder:
    """The pictures of one split in the order of their names: `files` relative to `root`, `labels` int64 [N].

    `skipped` counts links that lead out of the split's folder, or to nothing.
    """

    root: Path
    split: str
    classes: list[str]
    files: list[str]
    labels: np.ndarray
    skipped: int


def scan(path: Path, split: str) -> Folder:
    """List the pictures of `PATH/SPLIT`, sorted by class and name.

    Links are followed only if they stay within `PATH/SPLIT`.

    Raises:
        UserError: the folder, its classes or its pictures are missing, or may not be read.
    """
    root = path / split
    if not is_folder(path):
        raise _problem(path, "is no folder; give one that holds train/CLASS/*.jpg and val/CLASS/*.jpg")
    if not is_folder(root):
        message = f"holds no {split}/ folder; expected {root}/CLASS/*.jpg"
        raise _problem(path, message + _ONLY_PREPARED * any(path.glob(f"*{split}*{TAR}")))
    try:
        return _scan(path, split)
    except PermissionError as error:
        raise _problem(path, f"{error.filename} may not be read; change its permissions") from None
    except OSError as error:
        raise _problem(path, f"{error.filename} cannot be read: {error.strerror}") from None


def is_remote(path: str) -> bool:
    """Whether a data set's path is a URL, such as that of a bucket."""
    return "://" in path


def only_prepared(path: str) -> bool:
    """Whether a data set's path is one that `train prepare` alone reads: a URL, or a tar file."""
    return is_remote(path) or path.endswith(TAR)


def is_folder(path: Path) -> bool:
    """Is there a folder? Not where the name is too long for one, or what leads to it may not be read."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _scan(path: Path, split: str) -> Folder:
    root = path / split
    inside = f"{root.resolve()}{os.sep}"
    classes, skipped = _entries(root, inside, os.DirEntry.is_dir)
    if not classes:
        raise _problem(path, f"{root} holds no class folders; expected {root}/CLASS/*.jpg")
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        pictures, links = _entries(root / name, inside, _is_picture)
        if not pictures:
            raise _problem(path, f"{root / name} holds no pictures ({' '.join(EXTENSIONS)})")
        files += [f"{name}/{picture}" for picture in pictures]
        labels += [label] * len(pictures)
        skipped += links
    return Folder(root, split, classes, files, np.array(labels, dtype=np.int64), skipped)


def counts(path: Path) -> tuple[int, int, int]:
    """Classes, training pictures and validation pictures below a folder.

    Raises:
        UserError: a split is missing, or its classes are not those of the other.
    """
    train, val = scan(path, "train"), scan(path, "val")
    if train.classes != val.classes:
        different = sorted(set(train.classes) ^ set(val.classes))
        message = f"train/ and val/ differ in their classes: {', '.join(different[:5])}{' ...' * (len(different) > 5)}"
        raise _problem(path, message)
    return len(train.classes), len(train.files), len(val.files)


def _entries(folder: Path, inside: str, wanted: Callable[[os.DirEntry[str]], bool]) -> tuple[list[str], int]:
    """Sorted names of the wanted entries, and the number of links that do not stay below `inside`."""
    names: list[str] = []
    skipped = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not _stays(entry, inside):
                skipped += 1
            elif wanted(entry):
                names.append(entry.name)
    return sorted(names), skipped


def _stays(entry: os.DirEntry[str], inside: str) -> bool:
    """Does a link lead to something that exists below `inside`?"""
    try:
        target = Path(entry).resolve()
        return f"{target}{os.sep}".startswith(inside) and target.exists()
    except (OSError, RuntimeError):
        # note: a link in a loop is a RuntimeError up to Python 3.12
        return False


def _is_picture(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(EXTENSIONS) and entry.is_file()


def _problem(path: Path, message: str) -> UserError:
    return UserError(Problem(message, "dataset.path", path))
