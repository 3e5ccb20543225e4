"""AugMix (Hendrycks et al. 2020) without its consistency loss: chains of operations averaged with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.image_operations import ARRAYS, Choice, apply
from launcher.algorithms.randaugment import COMPLETE, OF_RGB, SETS, chosen, magnitudes
from launcher.compute import randomness
from launcher.config.fields import STRICT, Count, Positive
from launcher.data.batch import Batch
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


_SET = SETS["safe"]
_LONGEST = 3


def choose(values: AugMix, indices: np.ndarray, *, seed: int, epoch: int, size: int) -> tuple[np.ndarray, list[Choice]]:
    """Draw chains and weights for the sample indices [B]; an image's draws only depend on (seed, epoch, index).

    Returns weights float64 [1 + width, B], of the mixed image and of each chain, and the rounds of operations for the
    images of all chains, chain by chain.
    """
    longest = values.depth if values.depth > 0 else _LONGEST
    weights, draws, lengths = [], [], []
    alphas = [values.alpha] * values.width
    for random in randomness.generators(seed, "augmix", epoch, indices):
        chains = random.dirichlet(alphas)
        weights.append([random.beta(values.alpha, values.alpha), *chains])
        draws.append(random.random((values.width, longest, 3)))
        lengths.append(random.integers(1, longest + 1, values.width) if values.depth < 0 else [longest] * values.width)
    rounds = np.array(draws).transpose(2, 3, 1, 0).reshape(longest, 3, -1)
    ends = np.array(lengths).T.ravel()
    return np.array(weights).T, [_choice(values, draws, ends > number, size) for number, draws in enumerate(rounds)]


def _choice(values: AugMix, draws: np.ndarray, active: np.ndarray, size: int) -> Choice:
    which, level, sign = draws
    # note: a finished chain gets the number after the last operation, which means none
    operations = np.where(active, np.floor(which * len(_SET)).astype(np.int64), len(_SET))
    levels, signs = 0.1 + level * (values.severity - 0.1), np.where(sign < 0.5, -1.0, 1.0)
    return chosen(operations, magnitudes(_SET, levels, signs, size))


def mix(images: Tensor, arrays: Sequence[Tensor]) -> Tensor:
    """Compute `(1 - m) x + m sum_i w_i chain_i(x)` of uint8 images [B, 3, H, W]; `arrays`: weights, then all rounds."""
    weights, *rounds = arrays
    mixed, *chains = weights.view(*weights.shape, 1, 1, 1)
    copies = images.permute(0, 2, 3, 1).repeat(len(chains), 1, 1, 1).permute(0, 3, 1, 2)
    for start in range(0, len(rounds), ARRAYS):
        copies = apply(copies, rounds[start : start + ARRAYS])
    total = torch.zeros_like(images, dtype=torch.float32)
    for weight, chained in zip(chains, copies.chunk(len(chains)), strict=True):
        total += weight * chained
    blended: Tensor = (1 - mixed) * images + mixed * total
    return blended.round().clamp(0, 255).to(torch.uint8)


@dataclass(config=STRICT)
class AugMix(
    Algorithm,
    change_batch=-20,
    excludes=dict.fromkeys(("randaugment", "trivialaugment"), COMPLETE),
    acts_on=("image", "label"),
):
    """Mixes chains of operations for the whole batch on the device."""

    lacking = MappingProxyType({"mps": "float64"})
    needs_rgb = OF_RGB

    severity: Annotated[float, Field(gt=0, le=10)]
    width: Count
    depth: Literal[-1] | Count
    alpha: Positive

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        moment = batch.moment
        weights, rounds = choose(self, batch.indices, seed=moment.seed, epoch=moment.epoch, size=min(size))
        fixed = self.context.fixed_shapes(batch.inputs.device)
        arrays = [array for choice in rounds for array in choice.arrays(list(_SET), *size, fixed=fixed)]
        return Transform(
            [weights.astype(np.float32), *arrays],
            lambda batch, *arrays: replace(batch, inputs=mix(batch.inputs, arrays)),
        )
