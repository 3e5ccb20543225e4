"""A higher learning rate of the biases of norms, against torch's SGD with parameter groups."""

import pytest
import torch
from torch import nn

from launcher.algorithms.bias_scaling import BiasScaling
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.models.parameters import parameter_kinds
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from tests.trainers import SMALL, build, steps

SGD = ["optimizer=sgd", "optimizer.nesterov=true", "optimizer.weight_decay=0.01", "optimizer.no_decay=none"]


def test_it_is_a_learning_rate_of_torchs_sgd_whose_decay_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups as in airbench: the biases of norms have `factor` times lr and weight_decay / factor."""
    run = build("algorithms=[bias_scaling]", "algorithms.bias_scaling.factor=16", "precision=fp32", *SGD)
    model, lr, decay, momentum = run.train_step.model, 0.01, 0.01, run.config.optimizer.momentum
    copies = {name: nn.Parameter(one.detach().clone()) for name, one in model.named_parameters()}
    biases = [name for name, kind in parameter_kinds(model).items() if kind == "norm" and name.endswith("bias")]
    assert 0 < len(biases) < len(copies) // 2
    groups = [
        {"params": [copies[name] for name in biases], "lr": 16 * lr, "weight_decay": decay / 16},
        {"params": [copies[name] for name in copies if name not in biases], "lr": lr, "weight_decay": decay},
    ]
    optimizer = torch.optim.SGD(groups, lr, momentum=momentum, nesterov=True)
    own = BiasScaling.change_gradients

    def noted(self: BiasScaling, model: nn.Module, moment: object) -> None:
        for name, one in model.named_parameters():
            copies[name].grad = one.grad.clone()  # type: ignore[union-attr]
        own(self, model, moment)  # type: ignore[arg-type]

    monkeypatch.setattr(BiasScaling, "change_gradients", noted)
    for step in range(6):
        steps(run, 1)
        for group, factor in zip(optimizer.param_groups, (16, 1), strict=True):
            group["lr"] = run.plan.lr(step) * factor
        optimizer.step()
    for name, one in model.named_parameters():
        torch.testing.assert_close(one, copies[name], rtol=1e-5, atol=1e-6)


def test_an_optimizer_that_normalizes_gradients_is_refused() -> None:
    config = compose([*SMALL, "algorithms=[bias_scaling]", "optimizer=adamw"]).config
    with pytest.raises(UserError, match=r"optimizer=adamw is no SGD.*set optimizer=sgd"):
        check(plan_for(config, 1), {})
