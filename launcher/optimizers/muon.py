"""Muon: orthogonal matrices as steps; weights of the same shape are updated together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import Beta
from launcher.config.fields import STRICT, Count
from launcher.later import nn, torch
from launcher.models.parameters import parameter_kinds
from launcher.optimizers.adam import Adam
from launcher.optimizers.base import by_shape, unstacked

if TYPE_CHECKING:
    from torch import Tensor

# From Jordan et al. 2024, with a steep slope at zero: singular values become 0.7 to 1.2.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True, config=STRICT)
class Muon(Adam):
    """Muon (Jordan et al. 2024) for kernels except the head's and depthwise ones, AdamW for all other parameters.

    With gradient g, momentum m, weight decay c, and weights as matrices of the first dimension by all others:

        b = m * b + (1 - m) * g
        u = newton_schulz(b)                 (Nesterov: of (1 - m) * g + m * b)
        w = w - lr * (0.2 * sqrt(max(rows, columns)) * u + c * w)

    The factor makes steps as large as AdamW's (Liu et al. 2025, Muon is Scalable), so that both use the same lr.

    The betas are AdamW's, for the others.
    """

    name: Literal["muon"]
    momentum: Beta
    nesterov: bool
    iterations: Count

    @classmethod
    def separate_parameters(cls, model: nn.Module) -> list[str]:
        """Return the names of the parameters that get orthogonal steps."""
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        kinds = parameter_kinds(model)
        return [name for name, kind in kinds.items() if kind in ("matrix", "convolution") and shapes[name][1] > 1]

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        lr, decay = group["lr"], group["weight_decay"]
        if not group["separate"]:
            super()._update(parameters, gradients, group)
            return
        for kernels, kernel_gradients in by_shape(parameters, gradients):
            averages = self._state(kernels, "momentum_buffer")
            self._average(averages, kernel_gradients, 1 - self.momentum)
            momentum = torch._foreach_lerp(kernel_gradients, averages, self.momentum) if self.nesterov else averages
            stacked = torch.stack([kernel.flatten(1) for kernel in momentum])
            steps = 0.2 * max(stacked.shape[1:]) ** 0.5 * newton_schulz(stacked, self.iterations)
            self._subtract(kernels, unstacked(steps.to(stacked.dtype), kernels), lr, decay)


def precision(device: torch.device) -> torch.dtype:
    """Return the type of the products: on a CPU float32, since bfloat16 is fifteen times slower without AVX-512."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def newton_schulz(matrices: Tensor, iterations: int) -> Tensor:
    """Return matrices [n, rows, columns] with singular values near 1, by products in the device's `precision`."""
    tall = matrices.shape[1] > matrices.shape[2]
    wide = (matrices.mT if tall else matrices).to(precision(matrices.device))
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    wide = (_by_squares if wide.dtype == torch.float32 else _by_rows)(wide, iterations)
    return wide.mT if tall else wide


def _by_rows(wide: Tensor, iterations: int) -> Tensor:
    """Multiply each iterate twice, as published."""
    a, b, c = _NEWTON_SCHULZ
    for _ in range(iterations):
        square = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(square, square, square, beta=b, alpha=c), wide, beta=a)
    return wide


def _by_squares(wide: Tensor, iterations: int) -> Tensor:
    """Multiply the polynomials, which commute, then `wide` once: a third of the operations for a 3x3 convolution."""
    a, b, c = _NEWTON_SCHULZ
    square, factors = wide @ wide.mT, torch.eye(wide.shape[1], device=wide.device)
    for _ in range(iterations):
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        polynomial.diagonal(dim1=1, dim2=2).add_(a)
        square = polynomial @ square @ polynomial
        factors = factors @ polynomial
    return factors @ wide
