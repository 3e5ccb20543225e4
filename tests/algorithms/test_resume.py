"""Stopped and gone on, or taken in parts: the training step with many methods at once."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from launcher.training.step import TrainStep
from launcher.training.trainer import build_step
from tests.trainers import tensors

pytestmark = pytest.mark.usefixtures("tiny_networks")

STEPS = 8
GROUPS = (
    "sam,stochastic_depth,mixup,cutmix,label_smoothing,ema,blurpool,channels_last,progressive_resizing",
    "swa,layer_freezing,selective_backprop,cutmix,ghost_batchnorm,squeeze_excite,gradient_clipping",
)
VALUES = {
    "sam": ["sam.interval=2"],
    "mixup": ["mixup.probability=0.5"],
    "cutmix": ["cutmix.probability=0.5"],
    "ema": ["ema.half_life=4ba", "ema.update_interval=2ba"],
    "swa": ["swa.start=2ba", "swa.update_interval=2ba"],
    "ghost_batchnorm": ["ghost_batchnorm.ghost_batch_size=4"],
    "squeeze_excite": ["squeeze_excite.min_channels=32"],
    "layer_freezing": ["layer_freezing.start=0.2"],
    "selective_backprop": ["selective_backprop.start=0.2"],
}
RANKS = Ranks(0, 1, 0, 1, torch.device("cpu"))


def made(group: str, *words: str) -> TrainStep:
    values = [f"algorithms.{word}" for name in group.split(",") for word in VALUES.get(name, [])]
    base = ["epochs=2", "batch_size=8", "schedule.warmup=1ba", f"algorithms=[{group}]"]
    config = compose([*base, *values, *words]).config
    plan = Plan(config, 1, train_samples=32)
    return build_step(plan, RANKS, Engine(Context(plan, 10)))


def train(step: TrainStep, first: int, last: int) -> None:
    for number in range(first, last):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 3, 24, 24), dtype=np.uint8)
        images, labels = torch.from_numpy(pixels), torch.arange(8)
        step(images, labels, np.arange(8), Moment(42, number // 4, number, STEPS)).report()


def state_of(step: TrainStep) -> dict[str, object]:
    return {
        "model": step.model.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "algorithms": step.engine.state_dict(),
    }


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("stopped", [3, 5])
def test_a_run_goes_on_bit_for_bit(group: str, stopped: int) -> None:
    whole, first, second = made(group), made(group), made(group)
    train(whole, 0, STEPS)
    train(first, 0, stopped)
    file = io.BytesIO()
    torch.save(state_of(first), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second.model.load_state_dict(state["model"])
    second.optimizer.load_state_dict(state["optimizer"])
    second.engine.load_state_dict(state["algorithms"])
    train(second, stopped, STEPS)
    pairs = list(zip(tensors(state_of(whole)), tensors(state_of(second)), strict=True))
    assert len(pairs) > 90
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(a.isfinite().all() for a, _ in pairs)


def test_accumulated_parts_give_the_gradient_of_the_whole() -> None:
    group = "stochastic_depth,mixup,label_smoothing"
    gradients = []
    for words in ((), ("device_batch_size=2",)):
        step = made(group, "algorithms.stochastic_depth.drop_rate=0.5", *words)
        step.optimizer.step = lambda: None  # type: ignore[method-assign]
        _normalise_by_statistics(step.model)
        train(step, 0, 1)
        gradients.append([p.grad.clone() for p in step.model.parameters() if p.grad is not None])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-5)


def _normalise_by_statistics(model: torch.nn.Module) -> None:
    """Batch norm by the running statistics, while its forward hooks still see a layer in training."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.forward = lambda x, m=module: torch.nn.functional.batch_norm(  # type: ignore[method-assign]
                x, m.running_mean, m.running_var, m.weight, m.bias
            )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_that_sam_skips_changes_nothing_and_lowers_the_loss_scale(precision: str) -> None:
    step = made("sam", "algorithms.sam.interval=1", f"precision={precision}")
    train(step, 0, 2)
    before = [tensor.clone() for tensor in (*step.model.parameters(), *tensors(step.optimizer.state_dict()["state"]))]
    scale = step.scaler.get_scale()
    finite = step.loss
    step.objective.loss = lambda logits, targets: finite(logits, targets) * torch.inf
    train(step, 2, 3)
    after = [*step.model.parameters(), *tensors(step.optimizer.state_dict()["state"])]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert step.scaler.get_scale() == (scale / 2 if precision == "fp16" else 1.0)
    step.objective.loss = finite
    train(step, 3, 4)
    assert not torch.equal(next(step.model.parameters()), before[0])
