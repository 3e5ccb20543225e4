"""Predictions of each image by the run of cross-validation that held it out."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.config.resolved import read
from launcher.launch.devices import decide
from launcher.records.run_folder import RunFolder
from launcher.weights.evaluated_images import EvaluatedImage, write_csv
from launcher.weights.trained_model import evaluate_run

_FOLD = re.compile(r"-dataset\.fold=\d+")
_TOP = 5


def name_without_fold(folder: Path) -> str:
    """Return what the folders of the runs of all folds have in common."""
    return _FOLD.sub("", folder.name)


def write_out_of_fold(folders: Sequence[Path]) -> Path:
    """Evaluate the newest checkpoint of the run of each fold on the images it held out; write a file beside the runs.

    NAME-out_of_fold.csv has the predictions of all images.

    Raises UserError if a run has no checkpoint, or its images have changed.
    """
    config = read(RunFolder(folders[0]).config)
    rows = [one for folder in folders for one in _evaluated(RunFolder(folder))]
    table = folders[0].parent / f"{name_without_fold(folders[0])}-out_of_fold.csv"
    write_csv(table, rows, config.task.predicted)
    return table


def _evaluated(folder: RunFolder) -> list[EvaluatedImage]:
    config = read(folder.config)
    return evaluate_run(folder, config, decide(replace(config.launch, nproc=1)).kind, top=_TOP).images
