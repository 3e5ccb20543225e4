"""Check a run's model before the start, on the meta device: its algorithms, views and batch norm."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import build
from launcher.errors import Problem, Problems, UserError
from launcher.models.build import build_model
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import other_views
from launcher.tasks import Task, build_task
from launcher.training.evaluation import outside_steps

_SEARCHED = 256  # around a refused view, to search for one that fits


def check_model(plan: Plan, origins: Mapping[str, str]) -> None:
    """Check that every algorithm applies to the model, and that the model accepts the batch of every step.

    Raises UserError with everything that does not fit, or if timm refuses the model's values.
    """
    config = plan.config
    problems, task = Problems(), build_task(config)
    with problems.collected():
        with torch.device("meta"):
            outputs, channels = config.task.outputs(config.dataset), config.dataset.channels
            network = build_model(config.model, outputs, config.loss, config.seed, channels)
        problems += [
            *_algorithms(plan, network),
            *_sizes(plan, task, network.eval()),
            *_batch_norm(plan, task, network.train()),
        ]
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
            message = f"{plan.config.model.architecture} has no {needs}; set algorithms.{name}=off"
            yield Problem(message, f"algorithms.{name}", "on")


def _structure(network: nn.Module) -> list[Any]:
    learning = [parameter.requires_grad for parameter in network.parameters()]
    return [learning, *((type(m), len(m._forward_hooks), len(m._buffers), len(m._modules)) for m in network.modules())]


def _sizes(plan: Plan, task: Task, network: nn.Module) -> Iterator[Problem]:
    """Yield a problem for the first size that the network refuses in training, evaluation and an algorithm's pass."""
    config, unit = plan.config, plan.config.task.unit
    equal = plan.of_equal_view(range(plan.total_steps))
    steps = {plan.view(numbers[0]): numbers[0] for numbers in equal}
    evaluated, (train_key, evaluation_key) = plan.evaluation_view, config.task.view_keys
    of_config = [(view, train_key, f"step {step} trains at") for view, step in steps.items()]
    of_config.append((evaluated, evaluation_key, "evaluation runs at"))
    passes = [(view, key, attrgetter(key)(config), use) for view, key, use in of_config]
    passes += [(view, key, value, f"step {step} selects samples at") for view, key, value, step in other_views(plan)]
    refused: set[str] = set()
    # note: training and evaluation often have the same view
    refusal = cache(partial(_refusal, network, task))
    for size, key, value, use in passes:
        if key in refused or (reason := refusal(size)) is None:
            continue
        refused.add(key)
        # note: the larger of two equally near sizes first
        near = (size + sign * distance for distance in range(1, _SEARCHED + 1) for sign in (1, -1))
        fitting = next((other for other in near if other > 0 and refusal(other) is None), None)
        nearest = (
            f"the nearest size that fits is {fitting} {unit}" if fitting else f"no size within {_SEARCHED} {unit} fits"
        )
        remedy = _remedy(network, {*steps, evaluated}, size)
        if len(steps) > 1:
            remedy += f"; {' '.join(_changing_size(plan))} keeps one size"
        yield Problem(
            f"{use} {size} {unit}, which {config.model.architecture} does not accept ({reason}); {nearest}{remedy}",
            key,
            value,
        )


def _batch_norm(plan: Plan, task: Task, network: nn.Module) -> Iterator[Problem]:
    """Yield a problem if a batch norm of the network in training gets a single value per channel."""
    if plan.rank_batch > plan.accumulation:
        return
    view = min(plan.view(steps[0]) for steps in plan.of_equal_view(range(plan.total_steps)))
    try:
        with torch.no_grad():
            network(_inputs(task, 1, view))
    except Exception as error:
        if "more than 1 value" not in str(error):
            return  # note: the size is refused in evaluation too
        images = plan.rank_batch
        few = next((n for n in range(2, images + 1) if images % n == 0), 2 * plan.world_size)
        key = "batch_size" if images == 1 else "device_batch_size"
        yield Problem(
            f"batch norm needs more than one sample per pass at {view} {plan.config.task.unit}; set {few} or more",
            key,
            getattr(plan.config, key),
        )


def _changing_size(plan: Plan) -> list[str]:
    """Return the words that turn off the algorithms that change the view during the run."""
    size, last = (plan.full_view,) * plan.config.task.axes, plan.total_steps - 1
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


def _refusal(network: nn.Module, task: Task, view: int) -> str | None:
    """Return the network's error for two samples of a view; None if it computes outputs of the task."""
    try:
        with torch.no_grad():
            outputs = network(_inputs(task, 2, view))
    except Exception as error:
        return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    if not isinstance(outputs, Tensor) or outputs.shape != task.output_shape(2, view):
        return "its output has not the shape of logits"
    return None


def _inputs(task: Task, count: int, view: int) -> Tensor:
    """Return prepared inputs of a view on the meta device."""
    inputs, _ = task.blank(count, view, torch.device("meta"))
    return task.prepare(outside_steps(inputs)).inputs
