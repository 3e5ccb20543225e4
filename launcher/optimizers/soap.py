"""SOAP: Adam in the eigenbasis of Shampoo's factors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count
from launcher.later import torch
from launcher.optimizers.base import by_shape, unstacked
from launcher.optimizers.shampoo import Preconditioned, eye, outer_products, times, zeros

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class SOAP(Preconditioned):
    """SOAP (Vyas et al. 2024): Adam in the eigenbasis of Shampoo's factors, one for each dimension of a tensor.

    With gradient g, weight decay c, and Q for the bases of all dimensions, so that Q'g is g in them:

        m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * (Q'g)^2
        w = w - lr * (Q (Q'm / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)) + c * w)
        F = beta2 * F + (1 - beta2) * G G'        for each dimension, with g as a matrix G of this dimension

    Every `interval` steps of the run each basis takes a step of orthogonal iteration, Q = qr(F Q), ordered by the
    diagonal of Q'FQ. Bases start as the identity, that is as Adam: the published code starts with the eigenvectors of
    the first gradient, which needs synchronization. Vectors, and dimensions longer than `max_side`, keep the identity.
    A basis that cannot be computed keeps its last value.
    """

    name: Literal["soap"]
    interval: Count
    max_side: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return step % self.interval == 0

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = self.beta1, self.beta2
        steps = self._count(group, parameters[0].device)
        for weights, weight_gradients in by_shape(parameters, gradients):
            averages, squares = self._moments(weights)
            self._average(averages, weight_gradients, 1 - beta1)
            bases = list(self._bases(weights, self.max_side))
            stacked, average = torch.stack(weight_gradients), torch.stack(averages)
            self._average(squares, unstacked(times(stacked, bases).square(), squares), 1 - beta2)
            scale = (torch.stack(squares) / (1 - beta2**steps)).sqrt_().add_(self.epsilon).mul_(1 - beta1**steps)
            direction = times(times(average, bases).div_(scale), [(dim, basis.mT) for dim, basis in bases])
            for dim, basis in bases:
                factors = self._state(weights, f"factor_{dim}", partial(zeros, basis.shape[-1]))
                self._average(factors, list(outer_products(stacked, dim).unbind()), 1 - beta2)
                if self.step_number % self.interval == 0:
                    own = self._state(weights, f"basis_{dim}")
                    self._rotate_basis(own, squares, torch.stack(factors), basis, dim)
            self._subtract(weights, unstacked(direction, weights), group["lr"], group["weight_decay"])

    def _bases(self, parameters: list[Tensor], max_length: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the dimensions (from 1) with bases of parameters of one shape, and those bases [n, length, length]."""
        shape = parameters[0].shape
        if len(shape) > 1:
            for dim, length in enumerate(shape, 1):
                if 1 < length <= max_length:
                    yield dim, torch.stack(self._state(parameters, f"basis_{dim}", partial(eye, length)))

    def _rotate_basis(
        self, bases: list[Tensor], squares: list[Tensor], factors: Tensor, basis: Tensor, dim: int
    ) -> None:
        order = (basis * (factors @ basis)).sum(1).argsort(dim=-1, descending=True, stable=True)
        ordered = basis.gather(2, order[:, None, :].expand_as(basis))
        now = torch.linalg.qr(factors @ ordered).Q
        valid = self._valid(now)
        torch._foreach_copy_(bases, list(torch.where(valid, now, basis).unbind()))
        order = torch.where(valid[:, 0], order, torch.arange(order.shape[1], device=order.device))
        stacked = torch.stack(squares)
        index = order.view(len(order), *(-1 if other == dim else 1 for other in range(1, stacked.ndim)))
        torch._foreach_copy_(squares, list(stacked.gather(dim, index.expand_as(stacked)).unbind()))
