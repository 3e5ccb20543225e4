"""samples.json: some validation images with labels and predictions, which the page of the run shows."""

import json
from pathlib import Path

import numpy as np
import torch

from launcher import atomic, page
from launcher.config.tasks import SHARES
from launcher.data.batch import START
from launcher.data.sampling import Request
from launcher.disk import reason
from launcher.errors import one_line
from launcher.tasks import build_task
from launcher.tasks.images import ImageTask, displayed
from launcher.training.evaluation import outside_steps
from launcher.training.trainer import Trainer

_MOST, _TOP = 12, 3


def write_samples(trainer: Trainer, path: Path) -> None:
    """Write images at equal distances in the validation set, as the network gets them, with their predictions.

    The weights are those that the finished run evaluates; only rank 0 calls this. A failure is a warning. Tasks and
    loaders without images have no file.
    """
    task = build_task(trainer.config, trainer.train_step.precision.dtype, trainer.task_facts)
    if not isinstance(task, ImageTask) or not trainer.config.dataloader.reads:
        return
    try:
        atomic.write_text(path, json.dumps(_samples(trainer, task)))
    # note: the run is complete, and code of the user's own can fail on images that it has not seen together
    except Exception as error:
        why = reason(error) if isinstance(error, OSError) else one_line(f"{type(error).__name__}: {error}")
        print(f"warning: cannot write images with predictions: {why}", flush=True)


@torch.inference_mode()
def _samples(trainer: Trainer, task: ImageTask) -> list[dict[str, object]]:
    """Return file, label, image and predictions of each sample, as texts."""
    config, device, loader = trainer.config, trainer.ranks.device, trainer.loaders.evaluate
    indices = np.unique(np.linspace(0, loader.reader.samples - 1, _MOST).round().astype(np.int64))
    [(images, labels, _)] = loader.reader.batches([Request(START, indices, loader.view)])
    model = trainer.evaluation_model
    model.load_state_dict(trainer.weights())
    # note: a compiled forward pass would be compiled again for this number of images
    model._compiled_call_impl = None
    model.eval()
    batch = task.prepare(outside_steps(images.to(device), task.targets(labels.to(device))))
    with trainer.train_step.precision.autocast():
        outputs = task.forward(model, batch.inputs)
    names = loader.reader.classes or [*map(str, range(config.task.outputs(config.dataset)))]
    predictions = task.predictions(outputs, names, _TOP)
    shown = task.beside(displayed(images / config.dataset.largest, config.dataset), batch.targets, outputs)
    digits = ".1%" if config.task.predicted[1] in SHARES else ".4g"
    return [
        {
            "file": loader.reader.name(index),
            "label": label,
            "predictions": [f"{name} {value:{digits}}" for name, value in predicted],
            "image": page.encoded(pixels),
        }
        for index, label, predicted, pixels in zip(
            indices.tolist(), task.labels(batch.targets, names), predictions, shown, strict=True
        )
    ]
