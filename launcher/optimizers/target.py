"""An optimizer by `_target_`: any class with the interface of torch.optim."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from launcher.config.choices import OptimizerConfig
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.config.targets import Called
from launcher.errors import Problem
from launcher.later import no_grad, torch
from launcher.optimizers.base import MaskedOptimizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class OptimizerTargetConfig(Called, OptimizerConfig):
    """Passes parameter groups, `lr` and `weight_decay` to the target, if it takes them, and its keywords."""

    libraries = ("torch.optim", "timm.optim")
    filled = ("params",)
    taken = ("lr", "weight_decay")

    @classmethod
    def defaults(cls, name: str) -> dict[str, Any]:
        scaled = {"reference_batch_size": 256, "scale_lr": "off", "backbone_lr": 1.0, "layer_decay": 1.0}
        return {**scaled, "weight_decay": 0.0, "no_decay": "none"}

    def accepts(self, *names: str) -> bool:
        """Return whether the target has one of the keywords."""
        return bool({*names} & inspect.signature(self.called).parameters.keys())

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.weight_decay and not self.accepts("weight_decay"):
            yield Problem(f"{self.target} has no weight decay; set 0", "optimizer.weight_decay", self.weight_decay)


class OptimizerTarget(MaskedOptimizer[OptimizerTargetConfig]):
    """Waits for the device once a step, to skip dropped steps and to pass the learning rate as a number."""

    capturable = False

    def __init__(self, groups: list[dict[str, Any]], lr: float, values: OptimizerTargetConfig):
        super().__init__(groups, lr, values)
        usual = {"lr": lr, "weight_decay": values.weight_decay}
        self.inner = values.built(params=groups, **{name: usual[name] for name in usual if values.accepts(name)})
        self._share()

    def _share(self) -> None:
        self.state, self.param_groups = self.inner.state, self.inner.param_groups

    @no_grad
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        rates = [torch.as_tensor(group["lr"], dtype=torch.float32) for group in self.param_groups]
        dropped = torch.zeros(()) if self.found_inf is None else self.found_inf
        device = dropped.device
        *numbers, is_dropped = torch.stack([*(rate.to(device) for rate in rates), dropped]).tolist()
        if is_dropped == 1:
            return
        for group, rate in zip(self.param_groups, numbers, strict=True):
            group["lr"] = rate
        with self.values.naming("step fails"):
            self.inner.step()

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Is not called: `step` calls the target's."""

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)
        self._share()
