"""Check a run's model before the start, on the meta device: its algorithms, views and batch norm."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import build
from launcher.config.declaration import Size
from launcher.config.fields import in_ratio, size_text, size_value
from launcher.data.loaders.features import FeatureLoader
from launcher.errors import Problem, Problems, UserError
from launcher.models.build import build_model
from launcher.models.features import features
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import other_views
from launcher.tasks import Task, build_task
from launcher.training.evaluation import outside_steps

_SEARCHED = 256  # around a refused view, to search for one that fits


def check_model(plan: Plan, origins: Mapping[str, str], optional: Collection[str] = ()) -> dict[str, str]:
    """Check that every algorithm applies to the model, and that the model accepts the batch of every step.

    Returns for each `optional` algorithm that changes nothing what the model lacks.

    Raises UserError with everything that does not fit, or if timm refuses the model's values.
    """
    config = plan.config
    problems, task, unneeded = Problems(), build_task(config), dict[str, str]()
    with problems.collected():
        with torch.device("meta"):
            outputs, channels = config.task.outputs(config.dataset), config.dataset.channels
            network = build_model(config.model, outputs, config.loss, config.seed, channels)
        lacking = dict(_algorithms(plan, network))
        unneeded = {name: needs for name, needs in lacking.items() if name in optional}
        problems += [
            *(_inapplicable(plan, name, needs) for name, needs in lacking.items() if name not in optional),
            *_sizes(plan, task, network.eval()),
            *_features(plan, task, network),
            *_batch_norm(plan, task, network.train()),
        ]
    if problems:
        raise UserError(*(replace(p, origin=origins.get(p.key or "")) for p in problems))
    return unneeded


def _algorithms(plan: Plan, network: nn.Module) -> Iterator[tuple[str, str]]:
    """Change the network; yield each algorithm that finds nothing to change, and what the network lacks."""
    active = build(Context(plan, plan.config.task.outputs(plan.config.dataset)))
    for name in plan.config.algorithms.acting("change_model"):
        if (needs := active[name].needs) is None:
            continue
        before = _structure(network)
        with torch.device("meta"):
            active[name].change_model(network)
        if _structure(network) == before:
            yield name, needs


def _inapplicable(plan: Plan, name: str, needs: str) -> Problem:
    message = f"{plan.config.model.architecture} has no {needs}; set algorithms.{name}=off"
    return Problem(message, f"algorithms.{name}", "on")


def _structure(network: nn.Module) -> list[Any]:
    learning = [parameter.requires_grad for parameter in network.parameters()]
    return [learning, *((type(m), len(m._forward_hooks), len(m._buffers), len(m._modules)) for m in network.modules())]


def _sizes(plan: Plan, task: Task, network: nn.Module) -> Iterator[Problem]:
    """Yield a problem for the first size that the network refuses in training, evaluation and an algorithm's pass."""
    config, unit = plan.config, plan.config.task.unit
    equal = plan.of_equal_view(range(plan.total_steps))
    steps = {plan.size(numbers[0]): numbers[0] for numbers in equal}
    evaluated, (train_key, evaluation_key) = plan.evaluation_size, config.task.view_keys
    of_config = [(size, train_key, f"step {step} trains at") for size, step in steps.items()]
    of_config.append((evaluated, evaluation_key, "evaluation runs at"))
    passes = [(size, key, attrgetter(key)(config), use) for size, key, use in of_config]
    for view, key, value, step in other_views(plan):
        passes.append((in_ratio(view, plan.full_size), key, value, f"step {step} selects samples at"))
    refused: set[str] = set()
    # note: training and evaluation often have the same size
    refusal = cache(partial(_refusal, network, task))
    for size, key, value, use in passes:
        if key in refused or (reason := refusal(size)) is None:
            continue
        refused.add(key)
        nearest = f"no size within {_SEARCHED} {unit} fits"
        if fitting := _fitting(refusal, size):
            nearest = f"the nearest size that fits is {_typed(fitting)} {unit}"
        remedy = _remedy(network, {*steps, evaluated}, size)
        if len(steps) > 1:
            remedy += f"; {' '.join(_changing_size(plan))} keeps one size"
        yield Problem(
            f"{use} {size_text(size)} {unit}, which {config.model.architecture} does not accept ({reason}); "
            f"{nearest}{remedy}",
            key,
            value,
        )


def _features(plan: Plan, task: Task, network: nn.Module) -> Problems:
    """Return a problem if the run needs features, which the network lacks."""
    problems = Problems()
    if isinstance(plan.config.dataloader, FeatureLoader):
        with problems.collected(), torch.no_grad():
            features(network, _inputs(task, 2, plan.evaluation_size))
    return problems


def _batch_norm(plan: Plan, task: Task, network: nn.Module) -> Iterator[Problem]:
    """Yield a problem if a batch norm of the network in training gets a single value per channel."""
    if plan.rank_batch > plan.accumulation:
        return
    # note: views never shrink
    size = plan.size(0)
    try:
        with torch.no_grad():
            network(_inputs(task, 1, size))
    except Exception as error:
        if "more than 1 value" not in str(error):
            return  # note: the size is refused in evaluation too
        images = plan.rank_batch
        few = next((n for n in range(2, images + 1) if images % n == 0), 2 * plan.world_size)
        key = "batch_size" if images == 1 else "device_batch_size"
        yield Problem(
            f"batch norm needs more than one sample per pass at {size_text(size)} {plan.config.task.unit}; "
            f"set {few} or more",
            key,
            getattr(plan.config, key),
        )


def _changing_size(plan: Plan) -> list[str]:
    """Return the words that turn off the algorithms that change the view during the run."""
    size, last = plan.full_size, plan.total_steps - 1
    active = plan.config.algorithms.items()
    return [f"algorithms.{n}=off" for n, v in active if v.size_after(plan, 0, size) != v.size_after(plan, last, size)]


def _fitting(refusal: Callable[[Size], str | None], size: Size) -> Size | None:
    """Return the nearest size that the network accepts: its edges are those of the nearest squares."""

    def edge_near(edge: int) -> int | None:
        # note: the larger of two equally near ones first
        near = (edge + sign * distance for distance in range(_SEARCHED + 1) for sign in (1, -1))
        return next((one for one in near if one > 0 and refusal((one,) * len(size)) is None), None)

    near = tuple(one for one in map(cache(edge_near), size) if one)
    return near if len(near) == len(size) and refusal(near) is None else None


def _typed(size: Size) -> str:
    """Return a size as a key takes it."""
    return str(size_value(size)).replace(" ", "")


def _remedy(network: nn.Module, sizes: set[Size], size: Size) -> str:
    """Return the remedy that the network's constructor offers, if any."""
    if len(sizes) > 1 and any(getattr(module, "dynamic_img_size", None) is False for module in network.modules()):
        return "; model.arguments.dynamic_img_size=true accepts several sizes"
    return (
        f"; model.img_size={_typed(size)} builds the model for it"
        if "img_size" in inspect.signature(type(network)).parameters
        else ""
    )


def _refusal(network: nn.Module, task: Task, size: Size) -> str | None:
    """Return the network's error for two samples of a size; None if it computes outputs of the task."""
    try:
        with torch.no_grad():
            outputs = network(_inputs(task, 2, size))
    except Exception as error:
        return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    if not isinstance(outputs, Tensor) or outputs.shape != task.output_shape(2, size):
        return "its output has not the shape of logits"
    return None


def _inputs(task: Task, count: int, size: Size) -> Tensor:
    """Return prepared inputs of a size on the meta device."""
    inputs, _ = task.blank(count, size, torch.device("meta"))
    return task.prepare(outside_steps(inputs)).inputs
