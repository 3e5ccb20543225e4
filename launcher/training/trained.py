"""What a run has learnt: its evaluated network, and a card that says what that takes and gives."""

from __future__ import annotations

from typing import Any

from torch import nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.resolved import digest
from launcher.config.schema import BCE
from launcher.models.build import build_model, model_surgeries
from launcher.models.surgery import Surgery
from launcher.plan.plan import Plan


def trained_network(plan: Plan, state: dict[str, Any]) -> tuple[nn.Module, dict[str, Surgery]]:
    """The network that the run evaluates, on the CPU, and what makes it from torchvision's."""
    config = plan.config
    assert config.dataset.classes is not None
    engine = Engine(Context(plan, config.dataset.classes))
    network = build_model(config.model, config.dataset.classes, config.loss, config.seed)
    engine.change_model(network)
    network.load_state_dict(state["weights"])
    return network, model_surgeries(config.model) | engine.surgeries()


def model_card(
    plan: Plan, state: dict[str, Any], surgeries: dict[str, Surgery], classes: list[str] | None
) -> dict[str, Any]:
    """What a checkpoint's network takes and gives; names of classes are the checkpoint's, else these, else numbers."""
    config, dataset = plan.config, plan.config.dataset
    return {
        "architecture": config.model.architecture,
        "load": "from model import load; network = load()"
        if surgeries
        else f"network = torchvision.models.{config.model.architecture}(num_classes={dataset.classes}); "
        "network.load_state_dict(safetensors.torch.load_file('model.safetensors'))",
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
        "scores": "sigmoid" if isinstance(config.loss, BCE) else "softmax",
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
