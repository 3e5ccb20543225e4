"""A trained classifier: the network that a run evaluates, and a card of its input and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.resolved import digest
from launcher.data.batch import normalize
from launcher.models.build import Surgery, build_model, model_surgeries
from launcher.plan.plan import Plan
from launcher.rank.group import claim
from launcher.tasks import Task, build_task
from launcher.training.evaluation import outputs_of
from launcher.training.precision import Precision, choose_precision
from launcher.training.trainer import of_this_run, set_backend
from launcher.weights.export_files import network_card


@dataclass(frozen=True)
class Classifier:
    """A network in evaluation mode on its device, and the card of what it takes and gives."""

    network: nn.Module
    card: dict[str, Any]
    precision: Precision
    device: torch.device
    task: Task

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] on the device to what the network takes."""
        return normalize(pixels, self.card["input"]["mean"], self.card["input"]["std"], self.precision.dtype)

    @torch.inference_mode()
    def predictions(self, pixels: Tensor, top: int) -> list[list[tuple[str, float]]]:
        """The same to the likeliest names of each image, at most `top`, with their probabilities."""
        images, mirrored = self.normalize(pixels), self.card["flip_average"]
        outputs = outputs_of(self.network, images, self.precision.autocast, flip_average=mirrored)
        return self.task.predictions(outputs, self.card["classes"], top)


def classifier_of(plan: Plan, state: dict[str, Any], kind: str) -> Classifier:
    """A checkpoint's evaluated weights, in the run's precision, on `cpu` or `cuda`.

    Raises:
        UserError: the checkpoint is of another run.
        MachineError: the GPU cannot be used.
    """
    config, device = plan.config, claim(kind, 0)
    set_backend(config)
    with of_this_run(state, config):
        network, surgeries = trained_network(plan, state)
    precision, task = choose_precision(config, device, plan.image_size(0)), build_task(config.task, config.loss.name)
    return Classifier(network.eval().to(device), model_card(plan, state, surgeries, None), precision, device, task)


def trained_network(plan: Plan, state: dict[str, Any]) -> tuple[nn.Module, dict[str, Surgery]]:
    """The network that the run evaluates, on the CPU, and what makes it from torchvision's."""
    config = plan.config
    outputs = config.task.outputs(config.dataset)
    engine = Engine(Context(plan, outputs))
    network = build_model(config.model, outputs, config.loss, config.seed)
    engine.change_model(network)
    network.load_state_dict(state["weights"])
    return network, model_surgeries(config.model) | engine.surgeries()


def model_card(
    plan: Plan, state: dict[str, Any], surgeries: dict[str, Surgery], classes: list[str] | None
) -> dict[str, Any]:
    """What a checkpoint's network takes and gives; names of classes are the checkpoint's, else these, else numbers."""
    config, dataset = plan.config, plan.config.dataset
    return {
        **network_card(config.model, dataset.classes or 0, changed=bool(surgeries)),
        "surgery": {name: surgery.values for name, surgery in surgeries.items()},
        "classes": state.get("classes") or classes or [str(number) for number in range(dataset.classes or 0)],
        "input": {
            "resize": plan.image_side(config.image.eval_resize),
            "size": plan.image_side(config.image.eval_size),
            "interpolation": config.image.eval_interpolation,
            "exif_orientation": dataset.exif_orientation,
            "mean": list(dataset.mean),
            "std": list(dataset.std),
        },
        "flip_average": config.image.eval_flip_average,
        "scores": config.task.scores(config.loss),
        "recipe": config.recipe,
        "dataset": dataset.name,
        "loader": config.dataloader.name,
        "step": state["step"],
        "averaged": config.algorithms.acting("evaluation_weights"),
        "top1": None,
        "top5": None,
        "pictures": None,
        "precision": None,
        "config": digest(config),
    }
