"""Fit the temperature of a run's logits on its validation images."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.errors import UserError
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder
from launcher.tasks.calibration import LEAST, MOST, Reliability, calibration_error, fit_temperature
from launcher.training.evaluation import evaluate
from launcher.weights import temperature
from launcher.weights.classifier import classifier_of, images_of, load_checkpoint


def calibrate_run(folder: RunFolder, config: RunConfig, device: str, *, best: bool) -> dict[str, Any]:
    """Write the temperature of the newest or best checkpoint into the run folder, and return what is written.

    Raises UserError if the run has no valid checkpoint, its images are missing, or no temperature minimizes their loss.
    Raises MachineError if the GPU cannot be used.
    """
    state, plan = load_checkpoint(folder, best=best), plan_for(config, 1)
    classifier, batches = classifier_of(plan, state, device), list[tuple[Tensor, Tensor]]()

    def keep(outputs: Tensor, targets: Tensor) -> None:
        batches.append((outputs.cpu(), targets.cpu()))

    with images_of(plan, state, folder, None, classifier.device) as (loader, _, _):
        autocast = classifier.precision.autocast
        evaluate(classifier.network, classifier.task, loader, autocast, classifier.device, observers=[keep])
    outputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    fitted = fit_temperature(outputs, targets, sigmoid=config.loss.scores == "sigmoid")
    if fitted is None:
        message = (
            f"no temperature between {LEAST:g} and {MOST:g} minimizes the loss of {count_of(len(outputs), 'image')}"
        )
        raise UserError(f"{message}; use a run with more validation images")
    task: Any = classifier.task
    values = {
        "step": state["step"],
        temperature.FACT: fitted,
        "samples": len(outputs),
        "before": _measured(outputs, targets, task.loss, task.probabilities),
        "after": _measured(outputs / fitted, targets, task.loss, task.probabilities),
    }
    temperature.write(folder, values)
    return values


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
