"""Which sample goes where: pure functions of (seed, epoch, step, rank)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from launcher import randomness

# sample indices of an epoch -> those that it reads instead
ChangeOrder = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Shard:
    """A rank's part of each global batch: whose it is, how it is loaded, and where it goes."""

    rank: int
    world_size: int
    workers: int
    prefetch: int
    device: torch.device


def epoch_order(seed: int, epoch: int, samples: int) -> np.ndarray:
    """Sample indices int64 [samples] in the order that an epoch reads them."""
    return randomness.generator(seed, "order", epoch).permutation(samples)


def rank_indices(order: np.ndarray, step: int, batch_size: int, rank: int, world_size: int) -> np.ndarray:
    """A rank's share [batch_size / world_size] of the global batch of a step within the epoch.

    The shares of all ranks, joined, are the same global batch for any number of ranks.
    """
    share = batch_size // world_size
    first = step * batch_size + rank * share
    return order[first : first + share]


def eval_indices(samples: int, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """A rank's evaluation batches: the ranks' together hold each sample exactly once; the last may be smaller."""
    mine = np.arange(rank, samples, world_size)
    return [mine[first : first + batch_size] for first in range(0, len(mine), batch_size)]
