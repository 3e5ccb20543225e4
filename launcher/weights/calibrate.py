"""Fit to a run's validation images what its predictions use: a temperature, the least confidence, or thresholds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder
from launcher.tasks.calibration import LEAST, MOST, Reliability, calibration_error, fit_temperature
from launcher.tasks.multilabel import best_threshold, f1, precise_threshold
from launcher.training.evaluation import evaluate
from launcher.weights import fitted
from launcher.weights.trained_model import TrainedModel, images_of, load_checkpoint, trained_model


def calibrate_run(
    folder: RunFolder, config: RunConfig, device: str, *, best: bool, precision: float | None = None
) -> dict[str, Any]:
    """Write what fits the newest or best checkpoint into the run folder, and return what is written.

    precision: that of the predictions from the least confidence, or the thresholds, on.

    Raises UserError if the run has no valid checkpoint, its images are missing, no temperature minimizes their loss, or
    no confidence has the precision. Raises MachineError if the GPU cannot be used.
    """
    state, plan = load_checkpoint(folder, best=best), plan_for(config, 1)
    model, batches = trained_model(plan, state, device), list[tuple[Tensor, Tensor]]()

    def keep(outputs: Tensor, targets: Tensor) -> None:
        batches.append((outputs.cpu(), targets.cpu()))

    with images_of(plan, state, folder, None, model.device) as (loader, _, _):
        autocast = model.precision.autocast
        evaluate(model.network, model.task, loader, autocast, model.device, observers=[keep])
    outputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    fit = _of_classes if config.task.labelled == "classes" else _of_class
    values = {"step": state["step"], "samples": len(outputs), **fit(model, outputs, targets, precision)}
    fitted.write(folder, values)
    return values


def _of_class(model: TrainedModel, outputs: Tensor, targets: Tensor, precision: float | None) -> dict[str, Any]:
    """Return the temperature, and with a precision the least confidence, of images of one class."""
    task: Any = model.task
    temperature = fit_temperature(outputs, targets, sigmoid=task.config.loss.scores == "sigmoid")
    if temperature is None:
        message = (
            f"no temperature between {LEAST:g} and {MOST:g} minimizes the loss of {count_of(len(outputs), 'image')}"
        )
        raise UserError(f"{message}; use a run with more validation images")
    values = {
        fitted.TEMPERATURE: temperature,
        "before": _measured(outputs, targets, task.loss, task.probabilities),
        "after": _measured(outputs / temperature, targets, task.loss, task.probabilities),
    }
    if precision is None:
        return values
    confidences, classes = task.probabilities(outputs / temperature).max(1)
    confidence = precise_threshold(confidences.numpy(), hits := (classes == targets).numpy(), precision)
    if confidence is None:
        message = f"no confidence has this precision on {count_of(len(outputs), 'validation image')}; type a lower one"
        raise UserError(Problem(message, "--precision", precision))
    kept = confidences.numpy() >= confidence
    return {
        **values,
        fitted.CONFIDENCE: confidence,
        "precision": float(hits[kept].mean()),
        "coverage": float(kept.mean()),
    }


def _of_classes(model: TrainedModel, outputs: Tensor, targets: Tensor, precision: float | None) -> dict[str, Any]:
    """Return a threshold for each class: that of its best F1, or the least of a precision.

    A class without images keeps the threshold of all classes, and one that never has the precision is not predicted.
    """
    scores, truth = outputs.sigmoid().numpy(), targets.numpy() > 0
    _, common = best_threshold(scores, truth)
    thresholds, imprecise = [], []
    for name, score, true in zip(model.card["classes"], scores.T, truth.T, strict=True):
        own = best_threshold(score, true)[1] if precision is None else precise_threshold(score, true, precision)
        if true.any() and own is None:
            imprecise.append(name)
        thresholds.append(common if not true.any() else 1.0 if own is None else own)
    return {
        fitted.THRESHOLD: thresholds,
        "without": imprecise,
        "before": _judged(scores, truth, np.full(len(thresholds), common)),
        "after": _judged(scores, truth, np.array(thresholds)),
    }


def _judged(scores: np.ndarray, truth: np.ndarray, thresholds: np.ndarray) -> dict[str, float]:
    """Return precision, recall and F1 of all labels together, and the mean F1 of the classes with images."""
    predicted = scores >= thresholds
    hits, known = int((predicted & truth).sum()), truth.any(0)
    by_class = [f1(*columns) for columns in zip(predicted.T[known], truth.T[known], strict=True)]
    return {
        "precision": hits / max(1, int(predicted.sum())),
        "recall": hits / max(1, int(truth.sum())),
        "f1": f1(predicted, truth),
        "macro_f1": float(np.mean(by_class)) if by_class else 0.0,
    }


def _measured(
    outputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    probabilities: Callable[[Tensor], Tensor],
) -> dict[str, float]:
    """Return loss and calibration error of outputs [N, C]."""
    reliability = Reliability(probabilities)
    reliability.add(outputs, targets)
    return {"loss": loss(outputs, targets).item(), "ece": calibration_error(reliability.bins())}
