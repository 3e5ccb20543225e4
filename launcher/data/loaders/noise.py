"""Batches of noise on the device, which `dataloader=synthetic` trains on."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from launcher.compute import randomness
from launcher.config.declaration import Size
from launcher.data.batch import Loaded
from launcher.data.classes import blank_labels
from launcher.data.images import Reader
from launcher.data.pixel_types import PixelType
from launcher.data.sampling import Request, Shard
from launcher.plan.plan import Plan


class Noise(Reader):
    """A few batches of noise on the device, used in turn, to measure the step without loading."""

    def __init__(self, plan: Plan, shard: Shard, samples: int, numbers: Iterable[int], count: int, size: Size):
        blank = blank_labels(plan.config.task, plan.config.dataset.classes or 1)
        self.labels = blank[np.arange(samples) % len(blank)]
        of_type = PixelType.of(plan.config.dataset)
        self._batches = []
        for number in numbers:
            random = randomness.generator(plan.config.seed, "synthetic", shard.rank, number)
            shape = (count, *size, of_type.channels)
            pixels = torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8).astype(of_type.loaded, copy=False))
            labels = torch.from_numpy(blank[random.integers(0, len(blank), count)])
            self._batches.append((pixels.permute(0, 3, 1, 2).to(shard.device), labels.to(shard.device)))

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        for request in requests:
            yield *self._batches[request.moment.step % len(self._batches)], request.indices

    def close(self) -> None:
        """Release the memory of the batches."""
        self._batches.clear()
