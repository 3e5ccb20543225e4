"""Built-in data sets, drawn with a seed or of this machine; imports no torch. Each kind is one file."""

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np

from launcher import paths
from launcher.config.builtin import images_of, is_drawn
from launcher.config.schema import Dataset, RunConfig
from launcher.data.classes import check_labels
from launcher.data.listing import is_file
from launcher.errors import Problem, UserError
from launcher.files.disk import reason

_VERSION = 2
# The file in a folder of drawn images with the name of their values.
_MARK = ".drawn"


def ensure_folder(dataset: Dataset) -> Path:
    """Return a local data set's folder; draw the built-in images on first use, by one process.

    Raises UserError if `dataset.path` of built-in images is another folder than theirs, or cannot be written.
    """
    folder = shapes_folder(dataset)
    if is_drawn(dataset.kind):
        check_folder(dataset)
        if not (folder / "val").is_dir():
            _draw_all(dataset, folder)
    return folder


def check_folder(dataset: Dataset) -> None:
    """Raise UserError if `dataset.path` of built-in images exists, and is no folder of theirs."""
    folder = shapes_folder(dataset)
    if dataset.path is None or not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not is_file(mark := folder / _MARK) or mark.read_text() != drawn_as(dataset):
        message = f"is not the folder of dataset={dataset.name}, whose images are drawn by the program; set "
        message += "dataset=image_folder to read the folder, or remove dataset.path"
        raise UserError(Problem(message, "dataset.path", dataset.path))


def shapes_folder(dataset: Dataset) -> Path:
    """Return the images' folder, drawn or not."""
    return Path(dataset.path).expanduser() if dataset.path else paths.cache() / drawn_as(dataset)


def drawn_as(dataset: Dataset) -> str:
    """Return a name that identifies the images by the data set's values."""
    facts = (_VERSION, dataset.train_samples, dataset.val_samples, dataset.native_size)
    return f"{dataset.kind}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"


def _draw_all(dataset: Dataset, folder: Path) -> None:
    """Draw into a temporary folder and rename it, so that no process reads a partial data set.

    Raises UserError if the folder cannot be written, or contains other files.
    """
    try:
        images = images_of(dataset.kind)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            drawn = Path(temporary) / "shapes"
            for split, samples in (("train", dataset.train_samples), ("val", dataset.val_samples)):
                images.draw(drawn, split, samples or 0, dataset.native_size)
            (drawn / _MARK).write_text(drawn_as(dataset))
            drawn.rename(folder)
    except OSError as error:
        # note: another process may have drawn the same images meanwhile
        if not (folder / "val").is_dir():
            message = f"cannot write the built-in images to {folder} ({reason(error)}); set an empty folder"
            raise UserError(Problem(message, "dataset.path", dataset.path)) from None


def check_built_in(config: RunConfig) -> tuple[list[str], list[str]]:
    """Check the values of built-in images, drawn or not; return the names of their labels, and notes."""
    dataset = config.dataset
    labelled, names = images_of(dataset.kind).labels(dataset)
    if config.task.labelled != labelled:
        message = "has other labels; set dataset=shapes for task=classification, dataset=scenes for task=multilabel, "
        message += "dataset=scene_colours for task=regression, dataset=shape_masks for task=segmentation"
        raise UserError(Problem(message, "dataset", dataset.name))
    for key, value, usual in (("classes", dataset.classes, len(names)), ("val_split", dataset.val_split, None)):
        if value != usual:
            message = f"the built-in images have {config.task.counted(len(names))} and their own validation split; "
            raise UserError(Problem(f"{message}remove the key", f"dataset.{key}", value))
    check_folder(dataset)
    if labelled != "class":
        return names, []
    train, val = (np.arange(count or 0) % len(names) for count in (dataset.train_samples, dataset.val_samples))
    return names, check_labels(config, names, train, val, "dataset.train_samples", dataset.train_samples)
