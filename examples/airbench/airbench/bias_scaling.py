"""A higher learning rate of the biases of norms (Page 2019; Jordan 2024, arXiv:2404.00498)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from launcher.algorithms.base import Algorithm
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Positive
from launcher.data.batch import Moment
from launcher.errors import Problem
from launcher.models.parameters import parameter_kinds


@dataclass(config=STRICT)
class BiasScaling(Algorithm, change_gradients=20, acts_on=("image", "label")):
    """Multiplies the gradients of the biases of norms, which for SGD is their learning rate; weight decay stays."""

    factor: Positive

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if (optimizer := plan.config.optimizer.name) not in ("sgd", "decoupled_sgd"):
            message = f"optimizer={optimizer} is no SGD, whose steps are proportional to gradients; set optimizer=sgd"
            yield Problem(f"{message}, or algorithms.{self.name}=off", "factor", self.factor)

    def change_gradients(self, model: nn.Module, moment: Moment) -> None:
        kinds = parameter_kinds(model)
        biases = [one for name, one in model.named_parameters() if kinds[name] == "norm" and name.endswith("bias")]
        if gradients := [bias.grad for bias in biases if bias.grad is not None]:
            torch._foreach_mul_(gradients, self.factor)
