"""Assign samples to batches by pure functions of (seed, epoch, step, rank)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from launcher.compute import randomness
from launcher.data.batch import Moment
from launcher.plan.plan import Plan

# sample indices of an epoch, and its start -> those that it reads instead
ChangeOrder = Callable[[np.ndarray, Moment], np.ndarray]


@dataclass(frozen=True)
class Shard:
    """A rank's part of each global batch: its rank, its loader workers, and its device."""

    rank: int
    world_size: int
    workers: int
    prefetch: int
    device: torch.device


@dataclass(frozen=True)
class Request:
    """One batch: sample indices int64 [B], which key randomness with its moment, and their view."""

    moment: Moment
    indices: np.ndarray
    view: int


def epoch_order(seed: int, epoch: int, samples: int) -> np.ndarray:
    """Return sample indices int64 [samples] in an epoch's order."""
    return randomness.generator(seed, "order", epoch).permutation(samples)


def buffered_order(seed: int, epoch: int, archives: np.ndarray, buffer: int) -> np.ndarray:
    """Return sample indices int64 [N] in an epoch's order that reads few archives at a time, given that of each image.

    Archives and the images in each are shuffled; then each image moves back by less than `buffer` places. So a step
    needs the archives of `buffer` images.
    """
    random, samples = randomness.generator(seed, "order", epoch), len(archives)
    in_turn = random.permutation(archives.max() + 1)[archives]
    order = np.lexsort((random.permutation(samples), in_turn))
    return order[np.argsort(np.arange(samples) + random.uniform(0, buffer, samples), kind="stable")]


def balanced_order(seed: int, epoch: int, labels: np.ndarray) -> np.ndarray:
    """Return sample indices int64 [N], in the order of an epoch that draws each class of `labels` [N] equally often.

    It repeats the images of a small class and skips some of a large one; those of a class are drawn equally often too.
    Equal counts differ by at most one. Draw r of image i has the index i + r * N, and thus another crop.
    """
    random, samples = randomness.generator(seed, "balanced", epoch), len(labels)
    _, counts = np.unique(labels, return_counts=True)
    draws = samples // len(counts) + (random.permutation(len(counts)) < samples % len(counts))
    drawn = []
    for images, count in zip(np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1]), draws, strict=True):
        repeat, number = np.divmod(np.arange(count), len(images))
        drawn.append(random.permutation(images)[number] + repeat * samples)
    return random.permutation(np.concatenate(drawn))


def rank_indices(order: np.ndarray, step: int, batch_size: int, rank: int, world_size: int) -> np.ndarray:
    """Return a rank's batch [batch_size / world_size] of the global batch of a step within the epoch.

    The batches of all ranks, joined, are the same global batch for any number of ranks.
    """
    count = batch_size // world_size
    first = step * batch_size + rank * count
    return order[first : first + count]


def train_requests(
    plan: Plan,
    shard: Shard,
    labels: np.ndarray,
    epoch: int,
    first_step: int,
    change_order: ChangeOrder | None,
    archives: tuple[np.ndarray, int] | None = None,
) -> Iterator[Request]:
    """Yield this rank's batches of an epoch from a step on.

    labels: of all training images, int64 [N].
    archives: the archive of each image, int64 [N], and how many images are shuffled, if these are read through copies.
    """
    if plan.config.dataset.sampling == "balanced":
        order = balanced_order(plan.config.seed, epoch, labels)
    elif archives is not None:
        order = buffered_order(plan.config.seed, epoch, *archives)
    else:
        order = epoch_order(plan.config.seed, epoch, len(labels))
    start = Moment(plan.config.seed, epoch, epoch * plan.steps_per_epoch, plan.total_steps)
    if change_order is not None:
        order = change_order(order, start)
    for number in range(first_step, plan.steps_per_epoch):
        indices = rank_indices(order, number, plan.batch_size, shard.rank, shard.world_size)
        moment = replace(start, step=start.step + number, rank=shard.rank)
        yield Request(moment, indices, plan.loaded_view(moment.step))


def eval_indices(samples: int, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """Return a rank's evaluation batches: all ranks' together hold each sample once; the last may be smaller."""
    mine = np.arange(rank, samples, world_size)
    return [mine[first : first + batch_size] for first in range(0, len(mine), batch_size)]
