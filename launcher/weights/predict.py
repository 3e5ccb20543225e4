"""Predict the classes of images, by a run or by what `train export` has written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from launcher.config.resolved import read
from launcher.config.schema import TorchvisionLoader
from launcher.data.images import UNREADABLE, ReadableImages
from launcher.data.loaders import EvalLoader
from launcher.data.sampling import Shard
from launcher.data.unreadable import reason
from launcher.data.workers import worker_count
from launcher.plan.plan import plan_for
from launcher.rank.group import claim
from launcher.records.folder import RunFolder
from launcher.tasks import exported_task
from launcher.training.precision import Precision
from launcher.weights.classifier import Classifier, classifier_of
from launcher.weights.evaluate_run import saved
from launcher.weights.export_files import read_exported

_BATCH = 64
_LOADER = TorchvisionLoader(name="torchvision", workers="auto", prefetch=2)
# note: so many are read sooner than worker processes start
_FEW = 256


@dataclass(frozen=True)
class ClassifiedImage:
    """The likeliest classes of a file and their probabilities, the likeliest first; or why it cannot be read."""

    file: str
    classes: list[tuple[str, float]]
    unreadable: str | None = None


def classifier_of_run(folder: RunFolder, kind: str, *, best: bool) -> Classifier:
    """The newest or best checkpoint's evaluated weights, in the run's precision, on `cpu` or `cuda`.

    Raises:
        UserError: the run has no valid checkpoint.
        MachineError: the GPU cannot be used.
    """
    return classifier_of(plan_for(read(folder.config), 1), saved(folder, best=best), kind)


def classifier_of_export(folder: Path, kind: str) -> Classifier:
    """What `train export` has written, in float32.

    Raises:
        UserError: a file of it is missing, damaged, or of another network.
        MachineError: the GPU cannot be used.
    """
    network, card = read_exported(folder)
    device = claim(kind, 0)
    precision, task = Precision(device.type, torch.float32), exported_task(card["scores"])
    return Classifier(network.to(device), card, precision, device, task)


def predictions(classifier: Classifier, files: Sequence[str], top: int) -> Iterator[ClassifiedImage]:
    """The likeliest `top` classes of each file, in the order of the files."""
    values = classifier.card["input"]
    images = ReadableImages(
        Path(),
        files,
        np.zeros(len(files), np.int64),
        resize=values["resize"],
        size=values["size"],
        interpolation=values["interpolation"],
        upright=values["exif_orientation"],
    )
    workers = worker_count(_LOADER, 1) if len(files) > _FEW else 0
    loader = EvalLoader(images, Shard(0, 1, workers, _LOADER.prefetch, classifier.device), _BATCH)
    try:
        for pixels, labels, indices in loader:
            likeliest = classifier.predictions(pixels.to(classifier.device), top)
            for index, label, classes in zip(indices.tolist(), labels.tolist(), likeliest, strict=True):
                file = files[index]
                if label == UNREADABLE:
                    yield ClassifiedImage(file, [], reason(Path(file)) or "it has changed meanwhile")
                else:
                    yield ClassifiedImage(file, classes)
    finally:
        loader.close()
