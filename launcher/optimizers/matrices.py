"""Muon and SOAP: optimizers that take a weight as a matrix, or as a tensor with sides; those of one shape together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from launcher.algorithms.masked import Restorable
from launcher.optimizers.adaptive import Adaptive

# Of Jordan et al. 2024, chosen for the slope at zero: singular values come out between 0.7 and 1.2.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Muon(Adaptive):
    """Muon (Jordan et al. 2024) for groups that are `orthogonal`, AdamW for the others.

    With gradient g, momentum m, weight decay c, and a weight as a matrix of its first side by all others:

        b = m * b + (1 - m) * g
        u = newton_schulz(b)                 (Nesterov: of (1 - m) * g + m * b)
        w = w - lr * (0.2 * sqrt(longer side) * u + c * w)

    The factor gives steps of AdamW's size (Liu et al. 2025, Muon is Scalable), so that one lr serves both.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        lr, decay = group["lr"], group["weight_decay"]
        if not group["orthogonal"]:
            self._count(group, parameters[0].device)
            moments, beta1 = self._moments(parameters), group["betas"][0]
            self._adamw(parameters, gradients, moments, group, lr=lr, beta1=beta1, weight_decay=decay)
            return
        averages = self._state(parameters, "momentum_buffer")
        self._move(averages, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, averages, group["momentum"]) if group["nesterov"] else averages
        directions = [torch.empty_like(parameter) for parameter in parameters]
        for places in _of_one_shape(parameters):
            stacked = torch.stack([ahead[place].flatten(1) for place in places])
            steps = 0.2 * max(stacked.shape[1:]) ** 0.5 * newton_schulz(stacked, group["iterations"])
            shaped = steps.to(stacked.dtype).view(-1, *parameters[places[0]].shape)
            torch._foreach_copy_([directions[place] for place in places], list(shaped.unbind()))
        self._subtract(parameters, directions, lr, decay)


def newton_schulz(matrices: Tensor, iterations: int) -> Tensor:
    """Matrices [n, rows, columns] with their singular values near 1, by products in bfloat16."""
    a, b, c = _NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    found = (matrices.mT if tall else matrices).bfloat16()
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        square = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(square, square, square, beta=b, alpha=c), found, beta=a)
    return found.mT if tall else found


class SOAP(Adaptive):
    """SOAP (Vyas et al. 2024): Adam in the eigenbasis of Shampoo's factors, one for each side of a tensor.

    With gradient g, weight decay c, and Q for the bases of all sides, in which Q'g is g:

        m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * (Q'g)^2
        w = w - lr * (Q (Q'm / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)) + c * w)
        F = beta2 * F + (1 - beta2) * (g as a matrix of that side) (itself transposed)         of each side

    At the steps of the run that `interval` divides, a basis takes a step of orthogonal iteration: Q = qr(F Q), in the
    order of Q'FQ's diagonal. Bases begin as the identity, so as Adam: the published code begins with the first
    gradient's eigenvectors, for which the host must wait. Sides over `max_side`, and vectors, stay in their own basis.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        interval: int,
        max_side: int,
    ):
        # note: which steps change the bases is known to the host alone
        super().__init__(groups, lr, betas, eps, interval=interval, max_side=max_side, capturable=False)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), steps = group["betas"], self._count(group, parameters[0].device)
        averages, squares = self._moments(parameters)
        self._move(averages, gradients, 1 - beta1)
        directions = [torch.empty_like(parameter) for parameter in parameters]
        for places in _of_one_shape(parameters):
            of_shape = [parameters[place] for place in places]
            sides = list(self._bases(of_shape, group["max_side"]))
            stacked, average = (torch.stack([each[place] for place in places]) for each in (gradients, averages))
            turned = _turned(stacked, sides)
            ours = [squares[place] for place in places]
            self._move(ours, _like(ours, turned.square()), 1 - beta2)
            scale = (torch.stack(ours) / (1 - beta2**steps)).sqrt_().add_(group["eps"]).mul_(1 - beta1**steps)
            found = _turned(_turned(average, sides).div_(scale), [(side, basis.mT) for side, basis in sides])
            torch._foreach_copy_([directions[place] for place in places], list(found.unbind()))
            self._follow(of_shape, stacked, sides, ours, beta2, due=self.number % group["interval"] == 0)
        self._subtract(parameters, directions, group["lr"], group["weight_decay"])

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
        kept = Restorable([*bases, *squares])
        kept.keep()
        order = (basis * (factors @ basis)).sum(1).argsort(dim=-1, descending=True, stable=True)
        basis = basis.gather(2, order[:, None, :].expand_as(basis))
        torch._foreach_copy_(bases, list(torch.linalg.qr(factors @ basis).Q.unbind()))
        stacked = torch.stack(squares)
        index = order.view(len(order), *(-1 if at == side else 1 for at in range(1, stacked.ndim)))
        torch._foreach_copy_(squares, list(stacked.gather(side, index.expand_as(stacked)).unbind()))
        if self.found_inf is not None:
            kept.put_back_unless(self.found_inf == 0)


def _eye(length: int, like: Tensor) -> Tensor:
    return torch.eye(length, dtype=like.dtype, device=like.device)


def _zeros(length: int, like: Tensor) -> Tensor:
    return like.new_zeros(length, length)


def _like(tensors: list[Tensor], stacked: Tensor) -> list[Tensor]:
    """The parts of a stack [n, ...], in the memory order of the tensors."""
    parts = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(parts, list(stacked.unbind()))
    return parts


def _turned(tensors: Tensor, sides: list[tuple[int, Tensor]]) -> Tensor:
    """Tensors [n, ...] with each of these sides multiplied by its matrices [n, length, length]."""
    for side, matrices in sides:
        moved = tensors.movedim(side, -1)
        tensors = (moved.flatten(1, -2) @ matrices).view(moved.shape).movedim(-1, side)
    return tensors


def _of_one_shape(tensors: list[Tensor]) -> list[list[int]]:
    """Places of the tensors of each shape."""
    places: dict[torch.Size, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.shape, []).append(place)
    return list(places.values())
