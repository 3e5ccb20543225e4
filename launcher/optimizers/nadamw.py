"""NAdamW: AdamW with Nesterov momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.optimizers.adam import Adam, AdamConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class NAdamWConfig(AdamConfig):
    name: Literal["nadamw"]


class NAdamW(Adam[NAdamWConfig]):
    """Adam with decoupled decay and Nesterov momentum, as in AlgoPerf's baseline (Choi et al. 2019, table 1).

    With Adam's moments m and v of t steps, gradient g and weight decay c:

        n = (beta1 * m + (1 - beta1) * g) / (1 - beta1^t)
        w = w - lr * (n / (sqrt(v / (1 - beta2^t)) + eps) + c * w)

    torch.optim's NAdam is the version of Dozat 2016, with a schedule for the momentum.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        steps = self._count(group, parameters[0].device)
        _, directions = self._nadam(parameters, gradients, steps)
        self._subtract(parameters, directions, group["lr"], group["weight_decay"])
