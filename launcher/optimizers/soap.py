"""SOAP: Adam in the eigenbasis of each tensor's gradients; tensors of one shape are updated together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from launcher.config.choices import SOAPConfig
from launcher.foreach import Snapshot
from launcher.optimizers.adam import Adam
from launcher.optimizers.base import by_shape, unstacked


class SOAP(Adam[SOAPConfig]):
    """SOAP (Vyas et al. 2024): Adam in the eigenbasis of Shampoo's factors, one for each side of a tensor.

    With gradient g, weight decay c, and Q for the bases of all sides, in which Q'g is g:

        m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * (Q'g)^2
        w = w - lr * (Q (Q'm / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)) + c * w)
        F = beta2 * F + (1 - beta2) * (g as a matrix of that side) (itself transposed)         of each side

    At the steps of the run that `interval` divides, a basis takes a step of orthogonal iteration: Q = qr(F Q), in the
    order of Q'FQ's diagonal. Bases begin as the identity, so as Adam: the published code begins with the first
    gradient's eigenvectors, for which the host must wait. Sides over `max_side`, and vectors, stay in their own basis.
    """

    # note: which steps change the bases is known to the host alone
    capturable = False

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = self.values.beta1, self.values.beta2
        steps = self._count(group, parameters[0].device)
        for weights, slopes in by_shape(parameters, gradients):
            averages, squares = self._moments(weights)
            self._move(averages, slopes, 1 - beta1)
            sides = list(self._bases(weights, self.values.max_side))
            stacked, average = torch.stack(slopes), torch.stack(averages)
            self._move(squares, unstacked(_turned(stacked, sides).square(), squares), 1 - beta2)
            scale = (torch.stack(squares) / (1 - beta2**steps)).sqrt_().add_(self.values.epsilon).mul_(1 - beta1**steps)
            direction = _turned(_turned(average, sides).div_(scale), [(side, basis.mT) for side, basis in sides])
            self._follow(weights, stacked, sides, squares, beta2, due=self.number % self.values.interval == 0)
            self._subtract(weights, unstacked(direction, weights), group["lr"], group["weight_decay"])

    def _bases(self, parameters: list[Tensor], max_side: int) -> Iterator[tuple[int, Tensor]]:
        """Of each side of parameters of one shape that has bases: its number from 1, and those [n, length, length]."""
        shape = parameters[0].shape
        if len(shape) > 1:
            for side, length in enumerate(shape, 1):
                if 1 < length <= max_side:
                    yield side, torch.stack(self._state(parameters, f"basis_{side}", partial(_eye, length)))

    def _follow(
        self,
        parameters: list[Tensor],
        gradients: Tensor,
        sides: list[tuple[int, Tensor]],
        squares: list[Tensor],
        beta2: float,
        *,
        due: bool,
    ) -> None:
        """Move the factors by gradients [n, ...] of parameters of one shape; where it is due, the bases after them."""
        for side, basis in sides:
            factors = self._state(parameters, f"factor_{side}", partial(_zeros, basis.shape[-1]))
            rows = gradients.movedim(side, -1).flatten(1, -2)
            self._move(factors, list((rows.mT @ rows).unbind()), 1 - beta2)
            if due:
                self._turn(self._state(parameters, f"basis_{side}"), squares, torch.stack(factors), basis, side)

    def _turn(self, bases: list[Tensor], squares: list[Tensor], factors: Tensor, basis: Tensor, side: int) -> None:
        before = Snapshot([*bases, *squares])
        before.take()
        order = (basis * (factors @ basis)).sum(1).argsort(dim=-1, descending=True, stable=True)
        basis = basis.gather(2, order[:, None, :].expand_as(basis))
        torch._foreach_copy_(bases, list(torch.linalg.qr(factors @ basis).Q.unbind()))
        stacked = torch.stack(squares)
        index = order.view(len(order), *(-1 if at == side else 1 for at in range(1, stacked.ndim)))
        torch._foreach_copy_(squares, list(stacked.gather(side, index.expand_as(stacked)).unbind()))
        if self.found_inf is not None:
            before.restore_unless(self.found_inf == 0)


def _eye(length: int, like: Tensor) -> Tensor:
    return torch.eye(length, dtype=like.dtype, device=like.device)


def _zeros(length: int, like: Tensor) -> Tensor:
    return like.new_zeros(length, length)


def _turned(tensors: Tensor, sides: list[tuple[int, Tensor]]) -> Tensor:
    """Tensors [n, ...] with each of these sides multiplied by its matrices [n, length, length]."""
    for side, matrices in sides:
        moved = tensors.movedim(side, -1)
        tensors = (moved.flatten(1, -2) @ matrices).view(moved.shape).movedim(-1, side)
    return tensors
