"""Stochastic weight averaging (Izmailov et al. 2018): the plain mean of the weights at the end of training."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context
from launcher.algorithms.ema import update_average
from launcher.config.algorithms import SWAConfig
from launcher.data.batch import Moment


class SWA(Algorithm[SWAConfig]):
    """Averages the weights after `start` steps and every `update_interval` from then on.

    Batch-norm statistics are averaged like the weights, which spares the pass over the data that would recompute
    them. Until `start` the model's own weights are evaluated.
    """

    def __init__(self, values: SWAConfig, context: Context):
        super().__init__(values, context)
        self._average: dict[str, Tensor] = {}
        self._count = 0

    def change_model(self, model: nn.Module) -> None:
        self._average = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def after_step(self, model: nn.Module, moment: Moment) -> None:
        if self.values.acts_at(self.context.plan, moment.step):
            update_average(self._average, model.state_dict(), keep=self._count / (self._count + 1))
            self._count += 1

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        return self._average if self._count else None

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count = state["count"]
        for name, tensor in state["average"].items():
            self._average[name].copy_(tensor)
