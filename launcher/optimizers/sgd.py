"""SGD with coupled or decoupled weight decay, LARS, and Lion: optimizers with one average of gradients."""

from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from launcher.config.choices import DecoupledSGDConfig, LARSConfig, LionConfig, MomentumConfig, SGDConfig
from launcher.optimizers.base import MaskedOptimizer, Rate, trust_ratios

Values = TypeVar("Values", bound=MomentumConfig)
# note: m * -0.0 + g is exactly g at the first step
_MINUS_ZERO = partial(torch.full_like, fill_value=-0.0)


class Momentum(MaskedOptimizer[Values]):
    """Has the momentum b = m * b + g of gradients g, with b = g at the first step."""

    def _descend(
        self, parameters: list[Tensor], gradients: list[Tensor], lr: Rate, decay: float = 0.0, nesterov: bool = False
    ) -> None:
        momentum = self.values.momentum
        buffers = self._state(parameters, "momentum_buffer", _MINUS_ZERO) if momentum else []
        self._sgd(parameters, gradients, buffers, lr, decay, momentum, nesterov)


class SGD(Momentum[SGDConfig]):
    """SGD with momentum, as torch.optim computes it.

    With gradient g, weight decay c and momentum m:

        b = m * b + g + c * w          (b = g + c * w at the first step)
        w = w - lr * b                 (Nesterov: lr * (g + c * w + m * b))

    torch.optim's fused SGD does not initialize the momentum if the very first step is dropped.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        self._descend(parameters, gradients, group["lr"], group["weight_decay"], self.values.nesterov)


class DecoupledSGD(Momentum[DecoupledSGDConfig]):
    """SGD with momentum and weight decay outside of the gradient (SGDW, Loshchilov & Hutter 2019).

    With gradient g, momentum m and peak learning rate lr0:

        b = m * b + g          (b = g at the first step)
        w = w * (1 - lr / lr0 * weight_decay)
        w = w - lr * b         (Nesterov: lr * (g + m * b))

    The decay follows the schedule's multiplier, not the magnitude of the learning rate. lr0 is the constructor's `lr`,
    saved as `peak_lr` of the groups.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, values: DecoupledSGDConfig):
        super().__init__([{"peak_lr": lr * group.get("lr_factor", 1.0), **group} for group in groups], lr, values)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        rate = group["weight_decay"] / group["peak_lr"] if group["peak_lr"] else 0.0
        lr = group["lr"] if self.found_inf is None else group["lr"] * (1 - self.found_inf)
        if rate:
            torch._foreach_mul_(parameters, 1 - rate * lr)
        self._descend(parameters, gradients, group["lr"], nesterov=self.values.nesterov)


class LARS(Momentum[LARSConfig]):
    """LARS (You et al. 2017): tensors with weight decay move by a fraction of their norm, the others as with SGD.

    With gradient g, weight decay c, momentum m and trust coefficient t:

        r = t * |w| / (|g| + c * |w| + eps)        (1 where |w| or |g| is 0, or c is)
        b = m * b + r * (g + c * w)
        w = w - lr * b

    The momentum contains no learning rate, as in timm and, by a factor lr / last lr on m, in NVIDIA's MLPerf entries.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        if decay := group["weight_decay"]:
            trust, eps = self.values.trust_coefficient, self.values.epsilon
            ratios = trust_ratios(parameters, gradients, trust=trust, decay=decay, eps=eps)
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
            torch._foreach_mul_(gradients, ratios)
        self._descend(parameters, gradients, group["lr"])


class Lion(MaskedOptimizer[LionConfig]):
    """Lion (Chen et al. 2023): every weight moves by lr, in the direction of an average of gradients.

    With gradient g and weight decay c:

        w = w - lr * (sign(beta1 * m + (1 - beta1) * g) + c * w)
        m = beta2 * m + (1 - beta2) * g
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        averages = self._state(parameters, "exp_avg")
        signs = list(torch._foreach_sign(torch._foreach_lerp(averages, gradients, 1 - self.values.beta1)))
        self._subtract(parameters, signs, group["lr"], group["weight_decay"])
        self._average(averages, gradients, 1 - self.values.beta2)
