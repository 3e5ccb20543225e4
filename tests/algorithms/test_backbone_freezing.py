from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.optimizers.sgd import DecoupledSGD
from launcher.plan.checks import check
from launcher.plan.plan import Plan


def learn(model: nn.Module, algorithm: Any, made: Any) -> set[str]:
    """Names of the parameters that a step moves."""
    # note: with momentum and decay, so that a gradient of zero would still move the weights
    optimizer = DecoupledSGD([{"params": list(model.parameters()), "weight_decay": 0.1}], 0.1, 0.9, 0.0, False)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    algorithm.before_step(model, made.moment)
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(made.images), made.targets).backward()
    optimizer.step()
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def test_the_head_alone_learns_until_then(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    model = resnet18(num_classes=10)
    algorithm = bound("backbone_freezing", until="30ba")
    assert learn(model, algorithm, batch(side=32, step=29)) == {"fc.weight", "fc.bias"}
    assert learn(model, algorithm, batch(side=32, step=30)) == {name for name, _ in model.named_parameters()}


def test_the_head_is_found_by_what_it_is(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    """timm's vision transformer calls its last layer otherwise, and has linear layers everywhere."""
    import timm

    model = timm.create_model("test_vit", num_classes=10, img_size=32)
    made = batch(side=32, step=0)
    assert learn(model, bound("backbone_freezing", until="1ba"), made) == {"head.weight", "head.bias"}


def checked(*words: str) -> None:
    config = compose(["dataset=shapes", "launch=cpu", *words]).config
    assert config.dataset.train_samples is not None
    check(Plan(config, 1, config.dataset.train_samples), {})


def test_a_whole_run_is_refused() -> None:
    words = ["algorithms=[backbone_freezing]", "model.weights=runs/first"]
    checked(*words, "epochs=2")
    with pytest.raises(UserError, match=r"algorithms\.backbone_freezing\.until=1ep.*shorten it: 0\.1dur"):
        checked(*words, "epochs=1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithms=[backbone_freezing]"], r"algorithms\.backbone_freezing spares"),
        (["optimizer.backbone_lr=0.5"], r"optimizer\.backbone_lr=0\.5 spares"),
        (["recipe=finetune"], r"algorithms\.backbone_freezing and optimizer\.backbone_lr=0\.1 spare"),
    ],
)
def test_without_weights_there_is_nothing_to_spare(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=rf"^model\.weights=null: {said} what .*; set it to theirs: [^\n]*timm[^\n]*$"):
        checked(*words)
    checked(*words, "model.weights=timm")
    checked(*words, "algorithms.backbone_freezing=off", "optimizer.backbone_lr=1.0")
