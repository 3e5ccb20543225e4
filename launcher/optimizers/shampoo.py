"""Distributed Shampoo: steps in the bases of the gradients' factors, one for each dimension of a tensor."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass as plain_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count
from launcher.later import nn, torch
from launcher.models.parameters import fused_projections
from launcher.optimizers.adam import Adam
from launcher.optimizers.base import by_shape, unstacked

if TYPE_CHECKING:
    from torch import Tensor

# Of the norm by which grafting divides, as in the submission to AlgoPerf.
_TINY = 1e-16


class Preconditioned(Adam):
    """Keeps the last matrices where new ones cannot be computed, and counts these."""

    # note: the host decides at which steps the matrices change
    can_be_captured = False

    def _valid(self, matrices: Tensor) -> Tensor:
        """Return which matrices [n, d, d] are finite, in a step that is not dropped, as bool [n, 1, 1]."""
        finite = matrices.isfinite().all(dim=(1, 2), keepdim=True)
        taken = torch.ones_like(finite) if self.found_inf is None else (self.found_inf == 0).expand_as(finite)
        self._count_failures((~finite & taken).sum())
        return finite & taken


@dataclass(frozen=True, config=STRICT)
class Shampoo(Preconditioned):
    """Distributed Shampoo (Shi et al. 2023) as submitted to AlgoPerf: grafted to Adam, with NAdam's first moment.

    Each tensor is a set of blocks, whose dimensions are up to `max_side` long; the projections to queries, keys and
    values are tensors of their own. With a block's gradient g of k dimensions, weight decay c, and n and a NAdamW's
    average and step without decay after t steps:

        F = beta2 * F + (1 - beta2) * G G'        for each dimension, with g as a matrix G of this dimension
        R = (F / (1 - beta2^t) + eps)^(-1 / 2k)   at every `interval`th step, with eigenvalues shifted to 0 or more
        u = n times R in each dimension
        w = w - lr * (|a| / |u| * u + c * w)      (a in place of the first term before the first R)

    The ranks share the eigendecompositions, which on a GPU synchronize the host. A root that cannot be computed keeps
    its last value, as in the paper's code.

    `epsilon` is also that of Adam's step.
    """

    name: Literal["shampoo"]
    interval: Count
    max_side: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % self.interval == 0

    @classmethod
    def separate_parameters(cls, model: nn.Module) -> list[str]:
        """Return the names of the parameters that hold three projections."""
        return fused_projections(model)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        steps = self._count(group, parameters[0].device)
        parts = 3 if group["separate"] else 1
        alike = [
            (weights, weight_gradients, layout(weights[0].shape, self.max_side, parts))
            for weights, weight_gradients in by_shape(parameters, gradients)
        ]
        for weights, weight_gradients, form in alike:
            self._update_factors(weights, weight_gradients, form)
        if (self.step_number + 1) % self.interval == 0:
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
                    self._average(factors, list(outer_products(gradient, dim).unbind()), 1 - self.beta2)

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
            matrices = torch.stack(factors) / (1 - self.beta2 ** steps.clamp(min=1))
            now = inverse_roots(matrices, matrices.new_tensor(powers), self.epsilon)
            valid = self._valid(now)
            torch._foreach_copy_(list(roots), list(torch.where(valid, now, torch.stack(roots)).unbind()))

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


@plain_dataclass(frozen=True)
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


def eye(length: int, like: Tensor) -> Tensor:
    """Return the identity matrix."""
    return torch.eye(length, dtype=like.dtype, device=like.device)


def zeros(length: int, like: Tensor) -> Tensor:
    """Return a matrix of zeros."""
    return like.new_zeros(length, length)


def outer_products(tensors: Tensor, dim: int) -> Tensor:
    """Return T T' [n, length, length] of tensors [n, ...] as matrices T of this dimension by all others."""
    rows = tensors.movedim(dim, -1).reshape(len(tensors), -1, tensors.shape[dim])
    return rows.mT @ rows


def times(tensors: Tensor, matrices: list[tuple[int, Tensor]]) -> Tensor:
    """Multiply each of these dimensions of tensors [n, ...] by its matrices [n, length, length]."""
    for dim, matrix in matrices:
        moved = tensors.movedim(dim, -1)
        rows = moved.reshape(len(moved), -1, moved.shape[-1])
        tensors = (rows @ matrix).view(moved.shape).movedim(-1, dim)
    return tensors


def inverse_roots(matrices: Tensor, exponents: Tensor, epsilon: float) -> Tensor:
    """Return powers [n, d, d] of matrices whose least eigenvalue is `epsilon` or more after a shift; ranks share them.

    Powers that cannot be computed are not finite. exponents: [n], negative.
    """
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    own = slice(torch.distributed.get_rank() if ranks > 1 else 0, None, ranks)
    roots = torch.zeros_like(matrices)
    with full_precision():
        values, vectors = _eigen(matrices[own])
        values = (values - values[:, :1].clamp(max=0) + epsilon) ** exponents[own, None]
        roots[own] = vectors * values[:, None] @ vectors.mT
    if ranks > 1:
        torch.distributed.all_reduce(roots)
    return roots


def _eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues in ascending order and eigenvectors; NaN where they cannot be computed.

    Where the decomposition fails, often for matrices of low rank, each matrix is decomposed alone, if need be in
    float64.
    """
    try:
        values, vectors = torch.linalg.eigh(matrices)
        # note: LAPACK also returns NaN without an error; to find out would synchronize a GPU
        if not values.is_cpu or bool(vectors.isfinite().all()):
            return values, vectors
    except torch.linalg.LinAlgError:
        pass
    alone = [_eigen_alone(matrix) for matrix in matrices]
    return torch.stack([values for values, _ in alone]), torch.stack([vectors for _, vectors in alone])


def _eigen_alone(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `_eigen` returns of one matrix [d, d], in float64 of full rank if float32 fails."""
    failed = matrix.new_full((len(matrix),), torch.nan), torch.full_like(matrix, torch.nan)
    if not matrix.isfinite().all():
        return failed
    # note: the shift makes the rank full and changes no eigenvector
    largest = matrix.double().abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    shifted = matrix / largest + eye(len(matrix), largest)
    for candidate, scale, shift in ((matrix, 1.0, 0.0), (shifted, largest, 1.0)):
        with suppress(torch.linalg.LinAlgError):
            values, vectors = torch.linalg.eigh(candidate)
            if values.isfinite().all() and vectors.isfinite().all():
                return ((values - shift) * scale).to(matrix.dtype), vectors.to(matrix.dtype)
    return failed


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices without TF32, whose rounding exceeds the small eigenvalues."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
