"""SGD with coupled or decoupled decay, LARS, and Lion."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from launcher.algorithms.masked import Restorable
from launcher.optimizers.base import MaskedOptimizer, trust_ratios

# note: the first step makes g of m * -0.0 + g, bit for bit
_MINUS_ZERO = partial(torch.full_like, fill_value=-0.0)


class SGD(MaskedOptimizer):
    """SGD with momentum, as torch.optim's computes it.

    With gradient g, weight decay c, momentum m and dampening d:

        b = m * b + (1 - d) * (g + c * w)          (b = g + c * w at the first step)
        w = w - lr * b                             (Nesterov, with d = 0: lr * (g + c * w + m * b))

    torch's own fused one leaves the momentum uninitialised where the very first step is left out.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, momentum: float, dampening: float = 0.0, nesterov: bool = False
    ):
        super().__init__(groups, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        self._descend(parameters, gradients, group, group["weight_decay"])

    def _descend(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], weight_decay: float
    ) -> None:
        momentum = group["momentum"]
        buffers = self._state(parameters, "momentum_buffer", _MINUS_ZERO) if momentum else []
        if momentum and group["dampening"]:
            if weight_decay:
                gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
            self._push(buffers, gradients, group)
            if group["nesterov"]:
                buffers = list(torch._foreach_add(gradients, buffers, alpha=momentum))
            gradients, buffers, momentum, weight_decay = buffers, [], 0.0, 0.0
        torch._fused_sgd_(
            parameters,
            gradients,
            buffers,
            lr=group["lr"],
            weight_decay=weight_decay,
            momentum=momentum,
            dampening=0.0,
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=False,
            found_inf=self.found_inf,
        )

    def _push(self, buffers: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Move the momentum by dampened gradients, at the first step that is not left out by whole ones."""
        if "first" not in group:
            group["first"] = torch.stack([buffer.count_nonzero() == 0 for buffer in buffers]).all()
        kept = Restorable([*buffers, group["first"]])
        kept.keep()
        torch._foreach_mul_(buffers, group["momentum"])
        part = (1 - group["dampening"] * (~group["first"]).double()).to(buffers[0].dtype)
        torch._foreach_add_(buffers, torch._foreach_mul(gradients, part))
        group["first"].fill_(False)
        if self.found_inf is not None:
            kept.put_back_unless(self.found_inf == 0)


class DecoupledSGD(SGD):
    """SGD with momentum whose weight decay is apart from the gradient (SGDW, Loshchilov & Hutter 2019).

    With gradient g, momentum m, dampening d and peak learning rate lr0:

        b = m * b + (1 - d) * g          (b = g at the first step)
        w = w * (1 - lr / lr0 * weight_decay)
        w = w - lr * b                   (Nesterov: lr * (g + m * b))

    The decay follows the schedule's multiplier, not the size of the learning rate. `lr` of the constructor is
    lr0, kept in the parameter groups as `peak_lr` and so saved with the state.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, dampening: float, nesterov: bool):
        peaks = [{"peak_lr": lr * group.get("lr_part", 1.0), **group} for group in groups]
        super().__init__(peaks, lr, momentum, dampening, nesterov)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        rate = group["weight_decay"] / group["peak_lr"] if group["peak_lr"] else 0.0
        lr = group["lr"] if self.found_inf is None else group["lr"] * (1 - self.found_inf)
        if rate:
            torch._foreach_mul_(parameters, 1 - rate * lr)
        self._descend(parameters, gradients, group, 0.0)


class LARS(SGD):
    """LARS (You et al. 2017): what is decayed moves by a part of its own norm, the rest as with SGD.

    With gradient g, weight decay c, momentum m and trust coefficient t:

        r = t * |w| / (|g| + c * |w| + eps)        (1 where |w| or |g| is 0, or c is)
        b = m * b + r * (g + c * w)
        w = w - lr * b

    The momentum holds no learning rate, as in timm, and in NVIDIA's MLPerf entries by their factor lr / last lr on m.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, trust: float, eps: float):
        super().__init__([{"trust": trust, "eps": eps, **group} for group in groups], lr, momentum)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        if decay := group["weight_decay"]:
            ratios = trust_ratios(parameters, gradients, trust=group["trust"], decay=decay, eps=group["eps"])
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
            torch._foreach_mul_(gradients, ratios)
        self._descend(parameters, gradients, group, 0.0)


class Lion(MaskedOptimizer):
    """Lion (Chen et al. 2023): every weight moves by lr, in the direction of an average of gradients.

    With gradient g and weight decay c:

        w = w - lr * (sign(beta1 * m + (1 - beta1) * g) + c * w)
        m = beta2 * m + (1 - beta2) * g
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]):
        super().__init__(groups, lr=lr, betas=betas)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        averages = self._state(parameters, "exp_avg")
        signs = list(torch._foreach_sign(torch._foreach_lerp(averages, gradients, 1 - beta1)))
        self._subtract(parameters, signs, group["lr"], group["weight_decay"])
        self._move(averages, gradients, 1 - beta2)
