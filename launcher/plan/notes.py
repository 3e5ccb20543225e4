"""What works but is worth a look before a run: each rule one function over the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from launcher.config.layers import leaves
from launcher.config.models import VisionTransformerModel
from launcher.config.resolved import as_mapping
from launcher.plan.plan import Plan

_FEW_IMAGES = 16
_MUCH_LEFT_OUT = 0.1


def notes(plan: Plan) -> list[str]:
    """A line for each rule that has something to say."""
    return [line for rule in _RULES for line in rule(plan)]


def _learning_rate(plan: Plan) -> Iterator[str]:
    optimizer, batch = plan.config.optimizer, plan.config.batch_size
    if plan.peak_lr != optimizer.lr:
        yield (
            f"learning rate {optimizer.lr:g} is meant for a batch of {optimizer.reference_batch_size}; at {batch} it "
            f"is scaled to {plan.peak_lr:g} (optimizer.scale_lr=off keeps it)"
        )


def _fitted(plan: Plan) -> Iterator[str]:
    if plan.shortened:
        values = dict(leaves(as_mapping(plan.config)))
        told = [f"{key}={_told(given)} to {_told(values[key])}" for key, given in plan.shortened.items()]
        yield f"schedule.fit=on shortens for {plan.total_steps:,} steps: {', '.join(told)}"


def _told(value: str | list[str]) -> str:
    return value if isinstance(value, str) else f"[{','.join(value)}]"


def _optimizer(plan: Plan) -> Iterator[str]:
    yield from plan.config.optimizer.notes(plan)


def _partial_batch(plan: Plan) -> Iterator[str]:
    left_out = plan.train_samples - plan.steps_per_epoch * plan.config.batch_size
    if left_out > _MUCH_LEFT_OUT * plan.train_samples:
        yield f"{left_out} of {plan.train_samples} pictures an epoch are left out by the last partial batch"


def _batch_norm(plan: Plan) -> Iterator[str]:
    images = plan.rank_batch // plan.accumulation
    if images < _FEW_IMAGES and not isinstance(plan.config.model, VisionTransformerModel):
        yield f"batch norm sees only {images} images a forward pass"


def _algorithms(plan: Plan) -> Iterator[str]:
    for values in plan.config.algorithms.active().values():
        yield from values.notes(plan)


def _compiled(plan: Plan) -> Iterator[str]:
    if plan.config.compile == "on" and plan.config.launch.device == "cpu":
        yield "compile=on was slower than compile=off on every CPU measured, and its first start takes minutes longer"


def _gradient_dtype(plan: Plan) -> Iterator[str]:
    dtype = plan.config.launch.gradient_dtype
    if plan.world_size == 1 and dtype != "float32":
        yield f"launch.gradient_dtype={dtype} does nothing here: one process sends its gradients to no other"


_RULES: tuple[Callable[[Plan], Iterator[str]], ...] = (
    _learning_rate,
    _fitted,
    _optimizer,
    _partial_batch,
    _batch_norm,
    _algorithms,
    _compiled,
    _gradient_dtype,
)
