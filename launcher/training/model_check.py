"""Check a run's model before the start, on the meta device: its algorithms, image sizes and batch norm."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import build
from launcher.errors import Problem, Problems, UserError
from launcher.models.build import build_model
from launcher.plan.plan import Plan

_SEARCHED = 256  # pixels around a refused size in which to search for one that fits


def check_model(plan: Plan, origins: Mapping[str, str]) -> None:
    """Check that every algorithm applies to the model, and that the model accepts the batch of every step.

    Raises UserError with everything that does not fit, or if timm refuses the model's values.
    """
    config = plan.config
    problems = Problems()
    with problems.collected():
        with torch.device("meta"):
            network = build_model(config.model, config.task.outputs(config.dataset), config.loss, config.seed)
        problems += [*_algorithms(plan, network), *_sizes(plan, network.eval()), *_batch_norm(plan, network.train())]
    if problems:
        raise UserError(*(replace(p, origin=origins.get(p.key or "")) for p in problems))


def _algorithms(plan: Plan, network: nn.Module) -> Iterator[Problem]:
    """Yield a problem for each algorithm that does not change the network."""
    active = build(Context(plan, plan.config.task.outputs(plan.config.dataset)))
    for name in plan.config.algorithms.acting("change_model"):
        if (needs := active[name].needs) is None:
            continue
        before = _structure(network)
        with torch.device("meta"):
            active[name].change_model(network)
        if _structure(network) == before:
            message = f"does not apply to {plan.config.model.architecture}: it has no {needs}; turn the algorithm off"
            yield Problem(message, f"algorithms.{name}", "on")


def _structure(network: nn.Module) -> list[Any]:
    return [(type(m), len(m._forward_hooks), len(m._buffers), len(m._modules)) for m in network.modules()]


def _sizes(plan: Plan, network: nn.Module) -> Iterator[Problem]:
    """Yield a problem for the first training size that the network refuses, and one for the evaluation size."""
    config, image = plan.config, plan.config.image
    equal = plan.of_equal_size(range(plan.total_steps))
    steps = {plan.image_size(numbers[0]): numbers[0] for numbers in equal}
    evaluated = plan.scaled_size(image.eval_size)
    trained = [(size, "image.train_size", image.train_size, f"step {step} trains at") for size, step in steps.items()]
    refused: set[str] = set()
    # note: training and evaluation often have the same size
    refusal = cache(partial(_refusal, network, plan))
    for size, key, value, use in [*trained, (evaluated, "image.eval_size", image.eval_size, "evaluation runs at")]:
        if key in refused or (reason := refusal(size)) is None:
            continue
        refused.add(key)
        # note: the larger of two equally near sizes first
        others = (size + sign * distance for distance in range(1, _SEARCHED + 1) for sign in (1, -1))
        fitting = next((other for other in others if other > 0 and refusal(other) is None), None)
        nearest = f"the nearest size that fits is {fitting} px" if fitting else f"no size within {_SEARCHED} px fits"
        remedy = _remedy(network, {*steps, evaluated}, size)
        if len(steps) > 1:
            remedy += f"; {' '.join(_changing_size(plan))} keeps one size"
        yield Problem(
            f"{use} {size} px, which {config.model.architecture} does not accept ({reason}); {nearest}{remedy}",
            key,
            value,
        )


def _batch_norm(plan: Plan, network: nn.Module) -> Iterator[Problem]:
    """Yield a problem if a batch norm of the network in training gets a single value per channel."""
    if plan.rank_batch > plan.accumulation:
        return
    size = min(plan.image_size(steps[0]) for steps in plan.of_equal_size(range(plan.total_steps)))
    try:
        with torch.no_grad():
            network(torch.empty(1, 3, size, size, device="meta"))
    except Exception as error:
        if "more than 1 value" not in str(error):
            return  # note: the size is refused in evaluation too
        images = plan.rank_batch
        few = next((n for n in range(2, images + 1) if images % n == 0), 2 * plan.world_size)
        key = "batch_size" if images == 1 else "device_batch_size"
        yield Problem(
            f"batch norm needs more than one image per forward pass at {size} px; set {few} or more",
            key,
            getattr(plan.config, key),
        )


def _changing_size(plan: Plan) -> list[str]:
    """Return the words that turn off the algorithms that change the image size during the run."""
    size, last = (plan.train_size, plan.train_size), plan.total_steps - 1
    active = plan.config.algorithms.items()
    return [f"algorithms.{n}=off" for n, v in active if v.size_after(plan, 0, size) != v.size_after(plan, last, size)]


def _remedy(network: nn.Module, sizes: set[int], size: int) -> str:
    """Return the remedy that the network's constructor offers, if any."""
    if len(sizes) > 1 and any(getattr(module, "dynamic_img_size", None) is False for module in network.modules()):
        return "; model.arguments.dynamic_img_size=true accepts several sizes"
    return (
        f"; model.img_size={size} builds the model for it"
        if "img_size" in inspect.signature(type(network)).parameters
        else ""
    )


def _refusal(network: nn.Module, plan: Plan, size: int) -> str | None:
    """Return the network's error for two images of a size; None if it computes logits."""
    try:
        with torch.no_grad():
            outputs = network(torch.empty(2, 3, size, size, device="meta"))
    except Exception as error:
        return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    if not isinstance(outputs, Tensor) or outputs.shape != (2, plan.config.task.outputs(plan.config.dataset)):
        return "its output has not the shape of logits"
    return None
