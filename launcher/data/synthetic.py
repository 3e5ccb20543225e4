"""Random pictures already on the device: the speed of the step without any loading."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from launcher import randomness
from launcher.data.batch import Loaded, Overlap
from launcher.plan.plan import Plan


class SyntheticTrain:
    """A few batches of noise that take turns."""

    def __init__(self, plan: Plan, batches: int, rank: int, device: torch.device):
        self._plan, self._rank, self._device = plan, rank, device
        self._batches = [self._draw(rank, number, plan.rank_batch, plan.train_size) for number in range(batches)]

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        return Overlap((self._numbered(step) for step in range(first_step, self._plan.steps_per_epoch)), self._device)

    def evaluation(self) -> SyntheticEval:
        side = self._plan.image_side(self._plan.config.image.eval_size)
        return SyntheticEval(
            [self._draw(0, -1, max(1, self._plan.config.eval_batch_size // self._plan.world_size), side)]
        )

    def stalled(self, seconds: float) -> None:
        return None

    def close(self) -> None:
        self._batches = []

    def _numbered(self, step: int) -> Loaded:
        images, labels, _ = self._batches[step % len(self._batches)]
        first = step * self._plan.config.batch_size + self._rank * self._plan.rank_batch
        return images, labels, np.arange(first, first + len(labels))

    def _draw(self, rank: int, number: int, count: int, side: int) -> Loaded:
        random = randomness.generator(self._plan.config.seed, "synthetic", rank, number)
        pixels = random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        labels = random.integers(0, self._plan.config.dataset.classes or 1, count)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self._device)
        return images, torch.from_numpy(labels).to(self._device), np.arange(count)


class SyntheticEval:
    """One batch of noise, so that evaluation has something to count."""

    def __init__(self, batches: list[Loaded]):
        self._batches = batches
        self.classes: list[str] | None = None

    def __iter__(self) -> Iterator[Loaded]:
        return iter(self._batches)

    def file(self, index: int) -> None:
        return None

    def stalled(self, seconds: float) -> None:
        return None

    def close(self) -> None:
        self._batches = []
