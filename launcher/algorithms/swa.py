"""Stochastic weight averaging (Izmailov et al. 2018): the plain mean of the weights at the end of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context
from launcher.algorithms.ema import update_average
from launcher.config.algorithms import SWAConfig
from launcher.data.batch import Moment
from launcher.foreach import Snapshot


class SWA(Algorithm[SWAConfig]):
    """Averages the weights after `start` steps and every `update_interval` from then on.

    Batch-norm statistics are averaged like the weights, which spares the pass over the data that would recompute
    them. Until `start` the model's own weights are evaluated.
    """

    def __init__(self, values: SWAConfig, context: Context):
        super().__init__(values, context)
        self._average: dict[str, Tensor] = {}
        self._count = torch.zeros(())

    def change_model(self, model: nn.Module) -> None:
        self._average = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        # note: on the device, where alone is known how many updates were of steps that were not left out
        self._count = torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)
        self._snapshot = Snapshot([*self._average.values(), self._count])

    def after_step(self, model: nn.Module, moment: Moment, applied: Tensor) -> None:
        if self.values.acts_at(self.context.plan, moment.step):
            self._snapshot.take()
            update_average(self._average, model.state_dict(), (1 - self._count / (self._count + 1)).float())
            self._count += 1
            self._snapshot.restore_unless(applied)

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        return self._average if self._count else None

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "count": int(self._count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count.fill_(state["count"])
        for name, tensor in state["average"].items():
            self._average[name].copy_(tensor)
