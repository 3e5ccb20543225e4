"""AugMix (Hendrycks et al. 2020), its mixing alone: chains of operations averaged with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from launcher import randomness
from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.image_operations import ARRAYS, Choice, apply
from launcher.algorithms.randaugment import SETS, chosen, magnitudes
from launcher.config.batch_algorithms import AugMixConfig
from launcher.data.batch import Batch

_SET = SETS["safe"]
NAMES = list(_SET)
_LONGEST = 3


@dataclass(frozen=True)
class Mix:
    """Weights of chains float64 [B, width], of the mix against the original [B], rounds of each chain."""

    chains: np.ndarray
    mixed: np.ndarray
    rounds: list[list[Choice]]

    def arrays(self, height: int, width: int, *, fixed: bool) -> list[np.ndarray]:
        """What `mix` needs on the device for images of this size: weights, then the rounds of all chains together."""
        turns = [
            Choice(
                *(np.concatenate(parts) for parts in zip(*((c.operations, c.magnitudes) for c in turn), strict=True))
            )
            for turn in zip(*self.rounds, strict=True)
        ]
        rounds = [array for choice in turns for array in choice.arrays(NAMES, height, width, fixed=fixed)]
        return [np.stack([self.mixed, *self.chains.T]).astype(np.float32), *rounds]


def choose(values: AugMixConfig, indices: np.ndarray, *, seed: int, epoch: int, side: int) -> Mix:
    """Draw everything for the sample indices [B]; an image's draws depend on (seed, epoch, index) alone."""
    longest = values.depth if values.depth > 0 else _LONGEST
    weights, mixed, draws, lengths = [], [], [], []
    for index in indices:
        random = randomness.generator(seed, "augmix", epoch, int(index))
        weights.append(random.dirichlet([values.alpha] * values.width))
        mixed.append(random.beta(values.alpha, values.alpha))
        draws.append(random.random((values.width, longest, 3)))
        lengths.append(random.integers(1, longest + 1, values.width) if values.depth < 0 else [longest] * values.width)
    drawn, length = np.array(draws), np.array(lengths)
    rounds = [
        [_choice(values, drawn[:, chain, turn].T, length[:, chain] > turn, side) for turn in range(longest)]
        for chain in range(values.width)
    ]
    return Mix(np.array(weights), np.array(mixed), rounds)


def _choice(values: AugMixConfig, draws: np.ndarray, active: np.ndarray, side: int) -> Choice:
    which, level, sign = draws
    operations = np.floor(which * len(NAMES)).astype(np.int64)
    levels, signs = 0.1 + level * (values.severity - 0.1), np.where(sign < 0.5, -1.0, 1.0)
    # note: a chain that has ended draws the number after the last, which is no operation
    operations = np.where(active, operations, len(NAMES))
    return chosen(operations, magnitudes(_SET, levels, signs, side))


def mix(images: Tensor, drawn: Sequence[Tensor]) -> Tensor:
    """uint8 images [B, 3, H, W] to `(1 - m) x + m sum_i w_i chain_i(x)`, uint8; `drawn` are a mix's arrays there."""
    weights, *rounds = drawn
    mixed, *chains = weights.view(*weights.shape, 1, 1, 1)
    copies = images.permute(0, 2, 3, 1).repeat(len(chains), 1, 1, 1).permute(0, 3, 1, 2)
    for start in range(0, len(rounds), ARRAYS):
        copies = apply(copies, rounds[start : start + ARRAYS])
    total = torch.zeros_like(images, dtype=torch.float32)
    for weight, chained in zip(chains, copies.chunk(len(chains)), strict=True):
        total += weight * chained
    blended: Tensor = (1 - mixed) * images + mixed * total
    return blended.round().clamp(0, 255).to(torch.uint8)


class AugMix(Algorithm[AugMixConfig]):
    """Mixes chains of operations on the device for the whole batch."""

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        moment = batch.moment
        chosen = choose(self.values, batch.indices, seed=moment.seed, epoch=moment.epoch, side=size[1])
        arrays = chosen.arrays(*size, fixed=self.context.fixed_shapes(batch.images.device))
        return Transform(arrays, lambda batch, *drawn: replace(batch, images=mix(batch.images, drawn)))
