"""What the model of a run cannot do, found before the start by the model itself, without memory for it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
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
from launcher.plan.step_kinds import of_equal_size

_FAR = 256  # pixels around a size that does not fit, to look for one that does


def check_model(plan: Plan, origins: Mapping[str, str]) -> None:
    """Check that every algorithm finds in the model what it changes, and that the model takes images of every size.

    Raises:
        UserError: everything that does not fit; or timm refuses the model's values.
    """
    config = plan.config
    problems = Problems()
    with problems.collected():
        with torch.device("meta"):
            network = build_model(config.model, config.task.outputs(config.dataset), config.loss, config.seed)
        problems += [*_algorithms(plan, network), *_sizes(plan, network.eval())]
    if problems:
        raise UserError(*(replace(p, origin=origins.get(p.key or "")) for p in problems))


def _algorithms(plan: Plan, network: nn.Module) -> Iterator[Problem]:
    """A problem for each algorithm that leaves the network as it is."""
    active = build(Context(plan, plan.config.task.outputs(plan.config.dataset)))
    for name in plan.config.algorithms.acting("change_model"):
        if (needs := active[name].needs) is None:
            continue
        before = _shape(network)
        with torch.device("meta"):
            active[name].change_model(network)
        if _shape(network) == before:
            message = f"does not apply to {plan.config.model.architecture}: it has no {needs}; turn it off"
            yield Problem(message, f"algorithms.{name}", "on")


def _shape(network: nn.Module) -> list[Any]:
    return [(type(m), len(m._forward_hooks), len(m._buffers), len(m._modules)) for m in network.modules()]


def _sizes(plan: Plan, network: nn.Module) -> Iterator[Problem]:
    """A problem for the first training size that the network does not take, and for the evaluation's."""
    config, image = plan.config, plan.config.image
    equal = of_equal_size(plan, range(plan.total_steps))
    steps = {plan.image_size(numbers[0]): numbers[0] for numbers in equal}
    evaluated = plan.image_side(image.eval_size)
    trained = [(size, "image.train_size", image.train_size, f"step {step} trains at") for size, step in steps.items()]
    refused: set[str] = set()
    # note: training and evaluation often look for the same
    refusal = cache(partial(_refusal, network, plan))
    for size, key, value, who in [*trained, (evaluated, "image.eval_size", image.eval_size, "evaluation runs at")]:
        if key in refused or (reason := refusal(size)) is None:
            continue
        refused.add(key)
        fitting = next((other for other in _around(size) if refusal(other) is None), None)
        nearest = f"the nearest size that fits is {fitting} px" if fitting else f"no size within {_FAR} px fits"
        remedy = _remedy(network, {*steps, evaluated}, size)
        if len(steps) > 1:
            remedy += f"; {' '.join(_changing_size(plan))} keeps one size"
        yield Problem(
            f"{who} {size} px, which {config.model.architecture} does not accept ({reason}); {nearest}{remedy}",
            key,
            value,
        )


def _changing_size(plan: Plan) -> list[str]:
    """The words that turn the algorithms off by which the image size changes during the run."""
    size, last = (plan.train_size, plan.train_size), plan.total_steps - 1
    active = plan.config.algorithms.active().items()
    return [f"algorithms.{n}=off" for n, v in active if v.size_after(plan, 0, size) != v.size_after(plan, last, size)]


def _remedy(network: nn.Module, sizes: set[int], size: int) -> str:
    """What would make the network take the sizes, if its constructor offers it."""
    if len(sizes) > 1 and any(getattr(module, "dynamic_img_size", None) is False for module in network.modules()):
        return "; model.arguments.dynamic_img_size=true accepts several sizes"
    return (
        f"; model.img_size={size} builds the model for it"
        if "img_size" in inspect.signature(type(network)).parameters
        else ""
    )


def _around(size: int) -> Iterable[int]:
    """Sizes by their distance, the larger first."""
    return (other for far in range(1, _FAR + 1) for other in (size + far, size - far) if other > 0)


def _refusal(network: nn.Module, plan: Plan, size: int) -> str | None:
    """What a network says of two images of a size; None if it makes logits of them."""
    try:
        with torch.no_grad():
            outputs = network(torch.empty(2, 3, size, size, device="meta"))
    except Exception as error:
        return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    if not isinstance(outputs, Tensor) or outputs.shape != (2, plan.config.task.outputs(plan.config.dataset)):
        return "its output is not logits"
    return None
