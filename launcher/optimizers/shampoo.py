"""Distributed Shampoo: inverse roots of the gradients' factors, at the size of NAdamW's step."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.config.choices import ShampooConfig
from launcher.models.parameters import fused_projections
from launcher.optimizers.adam import Adam
from launcher.optimizers.base import by_shape, outer_products, times, unstacked, zeros

# Of the norm by which grafting divides, as in the submission to AlgoPerf.
_TINY = 1e-16


class Shampoo(Adam[ShampooConfig]):
    """Distributed Shampoo (Shi et al. 2023) as submitted to AlgoPerf: grafted to Adam, with NAdam's first moment.

    Each tensor is a set of blocks, whose dimensions are up to `max_side` long; the projections to queries, keys and
    values are tensors of their own. With a block's gradient g of k dimensions, weight decay c, and n and a NAdamW's
    average and step without decay after t steps:

        F = beta2 * F + (1 - beta2) * G G'        for each dimension, with g as a matrix G of this dimension
        R = (F / (1 - beta2^t) + eps)^(-1 / 2k)   at every `interval`th step, with eigenvalues shifted to 0 or more
        u = n times R in each dimension
        w = w - lr * (|a| / |u| * u + c * w)      (a in place of the first term before the first R)

    The ranks share the eigendecompositions, which on a GPU synchronize the host.
    """

    # note: the host decides at which steps the roots change
    capturable = False

    @classmethod
    def separate_parameters(cls, model: nn.Module) -> list[str]:
        """Return the names of the parameters that hold three projections."""
        return fused_projections(model)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        steps = self._count(group, parameters[0].device)
        parts = 3 if group["separate"] else 1
        alike = [
            (weights, weight_gradients, layout(weights[0].shape, self.values.max_side, parts))
            for weights, weight_gradients in by_shape(parameters, gradients)
        ]
        for weights, weight_gradients, form in alike:
            self._update_factors(weights, weight_gradients, form)
        if (self.step_number + 1) % self.values.interval == 0:
            self._update_roots([(weight, form) for weights, _, form in alike for weight in weights], steps)
        for weights, weight_gradients, form in alike:
            averages, grafts = self._nadam(weights, weight_gradients, steps)
            directions = self._preconditioned(weights, averages, grafts, form)
            self._subtract(weights, directions, group["lr"], group["weight_decay"])

    def _update_factors(self, weights: list[Tensor], gradients: list[Tensor], form: Layout) -> None:
        stacked = form.stack(gradients)
        for number, part in enumerate(form.blocks):
            gradient = stacked[part]
            for dim in range(1, gradient.ndim):
                start = partial(zeros, gradient.shape[dim])
                factors = self._state(weights, f"factor_{number}_{dim}", start)
                self._state(weights, f"root_{number}_{dim}", start)
                with full_precision():
                    self._average(factors, list(outer_products(gradient, dim).unbind()), 1 - self.values.beta2)

    def _update_roots(self, parameters: list[tuple[Tensor, Layout]], steps: Tensor) -> None:
        """Compute the roots of all factors, those of one length together."""
        alike = defaultdict(list)
        for parameter, form in parameters:
            state, exponent = self.state[parameter], -0.5 / len(form.shape)
            for name in filter(lambda name: name.startswith("factor_"), state):
                alike[len(state[name])].append((state[name], state[name.replace("factor", "root")], exponent))
        for same in alike.values():
            factors, roots, powers = zip(*same, strict=True)
            # note: no step is counted yet if the first was dropped
            matrices = torch.stack(factors) / (1 - self.values.beta2 ** steps.clamp(min=1))
            now = inverse_roots(matrices, matrices.new_tensor(powers), self.values.epsilon)
            if self.found_inf is not None:
                now = torch.where(self.found_inf == 0, now, torch.stack(roots))
            torch._foreach_copy_(list(roots), list(now.unbind()))

    def _preconditioned(
        self, weights: list[Tensor], averages: list[Tensor], grafts: list[Tensor], form: Layout
    ) -> list[Tensor]:
        """Return the averages times their roots with the norms of the grafts, block by block."""
        stacked, directions = form.stack(averages), form.stack(grafts)
        for number, part in enumerate(form.blocks):
            dims = list(range(1, stacked.ndim))
            roots = [(dim, torch.stack(self._state(weights, f"root_{number}_{dim}"))) for dim in dims]
            block, graft = times(stacked[part], roots), directions[part]
            norm, wanted = (torch.linalg.vector_norm(one, dim=dims, keepdim=True) for one in (block, graft))
            # note: roots are 0 before they are first computed
            directions[part] = torch.where(norm > 0, block * (wanted / (norm + _TINY)), graft)
        return unstacked(directions, weights)


@dataclass(frozen=True)
class Layout:
    """The shape of a tensor with joined dimensions, and its blocks as slices of a stack of such tensors."""

    shape: list[int]
    blocks: list[tuple[slice, ...]]

    def stack(self, tensors: list[Tensor]) -> Tensor:
        """Return tensors of this layout as one, [n, ...]."""
        return torch.stack([tensor.reshape(self.shape) for tensor in tensors])


def layout(shape: Sequence[int], longest: int, parts: int = 1) -> Layout:
    """Join neighbouring dimensions up to this length, and split longer ones; each of `parts` of the first by itself."""
    first, *others = merged([length // (1 if at else parts) for at, length in enumerate(shape)], longest)
    cuts = [
        [slice(start, min(start + longest, end)) for end in range(length, count * length + 1, length)
         for start in range(end - length, end, longest)]
        for length, count in [(first, parts), *((length, 1) for length in others)]
    ]  # fmt: skip
    return Layout([parts * first, *others], [(slice(None), *part) for part in itertools.product(*cuts)])


def merged(shape: Sequence[int], longest: int) -> list[int]:
    """Return a shape whose neighbouring dimensions are joined up to this length, without those of length 1."""
    lengths: list[int] = []
    for length in filter(lambda length: length > 1, shape):
        if lengths and lengths[-1] * length <= longest:
            lengths[-1] *= length
        else:
            lengths.append(length)
    return lengths or [1]


def inverse_roots(matrices: Tensor, exponents: Tensor, epsilon: float) -> Tensor:
    """Return powers [n, d, d] of matrices whose least eigenvalue is `epsilon` or more after a shift; ranks share them.

    exponents: [n], negative.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    own = slice(dist.get_rank() if ranks > 1 else 0, None, ranks)
    roots = torch.zeros_like(matrices)
    with full_precision():
        values, vectors = _eigen(matrices[own])
        values = (values - values[:, :1].clamp(max=0) + epsilon) ** exponents[own, None]
        roots[own] = vectors * values[:, None] @ vectors.mT
    if ranks > 1:
        dist.all_reduce(roots)
    return roots


def _eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues in ascending order and eigenvectors; those that do not converge in float32, by float64."""
    try:
        values, vectors = torch.linalg.eigh(matrices)
    except torch.linalg.LinAlgError:
        values, vectors = (result.to(matrices.dtype) for result in torch.linalg.eigh(matrices.double()))
    return values, vectors


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices without TF32, whose rounding exceeds the small eigenvalues."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
