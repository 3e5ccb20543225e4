"""Pictures in class folders: `PATH/train/CLASS/*.jpg` and `PATH/val/CLASS/*.jpg`; imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from launcher.errors import Problem, UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm")


@dataclass(frozen=True)
class Folder:
    """The pictures of one split in the order of their names: `files` relative to `root`, `labels` int64 [N]."""

    root: Path
    classes: list[str]
    files: list[str]
    labels: np.ndarray

    @cached_property
    def paths(self) -> np.ndarray:
        """Paths [N] as one NumPy array: worker processes share it without a copy."""
        return np.array([str(self.root / file) for file in self.files])


def scan(path: Path, split: str) -> Folder:
    """List the pictures of `PATH/SPLIT`, sorted by class and name.

    Raises:
        UserError: the folder, its classes or its pictures are missing.
    """
    root = path / split
    if not root.is_dir():
        raise UserError(Problem(f"holds no {split}/ folder; expected {root}/CLASS/*.jpg", "dataset.path", path))
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = _pictures(root / name)
        files += [f"{name}/{picture}" for picture in found]
        labels += [label] * len(found)
        if not found:
            raise UserError(Problem(f"{root / name} holds no pictures ({' '.join(EXTENSIONS)})", "dataset.path", path))
    if not files:
        raise UserError(Problem(f"{root} holds no class folders", "dataset.path", path))
    return Folder(root, classes, files, np.array(labels, dtype=np.int64))


def counts(path: Path) -> tuple[int, int, int]:
    """Classes, training pictures and validation pictures below a folder.

    Raises:
        UserError: a split is missing, or its classes are not those of the other.
    """
    train, val = scan(path, "train"), scan(path, "val")
    if train.classes != val.classes:
        different = sorted(set(train.classes) ^ set(val.classes))
        message = f"train/ and val/ differ in their classes: {', '.join(different[:5])}{' ...' * (len(different) > 5)}"
        raise UserError(Problem(message, "dataset.path", path))
    return len(train.classes), len(train.files), len(val.files)


def _pictures(folder: Path) -> list[str]:
    """Names of the pictures in a folder; links that lead out of the class folder are not followed."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name.lower().endswith(EXTENSIONS)
            and not entry.name.startswith(".")
            and entry.is_file(follow_symlinks=False)
        )
