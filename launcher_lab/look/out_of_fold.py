"""Predictions of each image by the run of cross-validation that held it out."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from launcher import page
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.data.sources.find import read_splits
from launcher.data.sources.pieces import Piece
from launcher.data.unreadable import read_skipped
from launcher.launch.devices import decide
from launcher.records.run_folder import RunFolder
from launcher.weights.evaluated_images import EvaluatedImage, write_csv
from launcher.weights.trained_model import CheckpointResult, evaluate_run
from launcher_lab.look.label_errors import labels_page

_FOLD = re.compile(r"-dataset\.fold=\d+")
_TOP = 5


def name_without_fold(folder: Path) -> str:
    """Return what the folders of the runs of all folds have in common."""
    return _FOLD.sub("", folder.name)


def write_out_of_fold(folders: Sequence[Path]) -> tuple[list[Path], int | None]:
    """Evaluate the newest checkpoint of the run of each fold on the images it held out; write files beside the runs.

    NAME-out_of_fold.csv has the predictions of all images; with one class an image NAME-labels.html shows those whose
    labels are suspected. Returns the files, and the number of these images, None for other tasks.

    Raises UserError if a run has no checkpoint, or its images have changed.
    """
    config = read(RunFolder(folders[0]).config)
    by_class, count = config.task.labelled == "class", config.dataset.classes or _TOP
    results = [_evaluated(RunFolder(folder), count if by_class else _TOP) for folder in folders]
    rows = [replace(one, predictions=one.predictions[:_TOP]) for result in results for one in result.images]
    stem = folders[0].parent / name_without_fold(folders[0])
    table = Path(f"{stem}-out_of_fold.csv")
    write_csv(table, rows, config.task.predicted)
    if not by_class:
        return [table], None
    names = sorted({name for result in results for one in result.images for name, _ in one.predictions})
    read_images = [one for result in results for one in result.images if one.unreadable is None]
    pieces = [piece for folder in folders for piece in _held_out(RunFolder(folder))]
    gallery = Path(f"{stem}-labels.html")
    section, suspected = labels_page(config, names, *_numbers(read_images, names), pieces)
    page.write(gallery, f"Labels of {config.dataset.path}", section)
    return [table, gallery], suspected


def _evaluated(folder: RunFolder, top: int) -> CheckpointResult:
    config = read(folder.config)
    return evaluate_run(folder, config, decide(replace(config.launch, nproc=1)).kind, top=top)


def _held_out(folder: RunFolder) -> list[Piece]:
    """Return where the validation images of a run are, in the order of an evaluation."""
    config: RunConfig = read(folder.config)
    val = read_splits(config, read_skipped(folder.skipped, config.dataset))[1]
    return [val.piece(number) for number in range(len(val.files))]


def _numbers(images: Sequence[EvaluatedImage], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels, int64 [N], and the probabilities [N, C] in the order of the names of the classes."""
    places = {name: number for number, name in enumerate(names)}
    probabilities = np.zeros((len(images), len(names)))
    for row, one in zip(probabilities, images, strict=True):
        row[[places[name] for name, _ in one.predictions]] = [value for _, value in one.predictions]
    return np.array([places[one.label] for one in images], np.int64), probabilities
