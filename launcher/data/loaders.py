"""Loaders of one rank: training batches of an epoch from any step on, and each evaluation sample once."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from launcher import randomness
from launcher.config import schema
from launcher.data.batch import Loaded, Overlap
from launcher.data.folder import Folder, splits
from launcher.data.images import ChangeImage, EvalImages, TrainImages, evaluated_input
from launcher.data.inspection import check_counts
from launcher.data.sampling import ChangeOrder, Shard, eval_indices, train_batches
from launcher.data.shapes import ensure_folder
from launcher.data.worker_processes import Keys, batches, data_loader, shut_down
from launcher.data.workers import worker_count
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan


class Loader:
    """What every loader has: whether a file stalls it, and an end of its processes and threads."""

    def __init__(self, stalled: Callable[[float], Path | None] = lambda _: None, end: Callable[[], None] | None = None):
        self._stalled, self._end = stalled, weakref.finalize(self, end) if end else None

    def stalled(self, seconds: float) -> Path | None:
        """Return a file whose reading has lasted for more than so many seconds."""
        return self._stalled(seconds)

    def close(self) -> None:
        """End all worker processes and threads."""
        if self._end:
            self._end()


class TrainLoader(Loader, ABC):
    """Yields (uint8 images [B, 3, H, W], int64 labels [B], int64 sample indices [B] on the CPU) of this rank."""

    @abstractmethod
    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        """Return the batches of an epoch from a step on; skipping costs nothing."""


class EvaluationLoader(Loader, ABC):
    """Yields the same for this rank's validation images, each once; `classes` are the labels' names, if known."""

    classes: list[str] | None = None

    @abstractmethod
    def __iter__(self) -> Iterator[Loaded]: ...

    def file(self, index: int) -> Path | None:
        """Return the image file of a sample, if it has one of its own."""
        return None


@dataclass(frozen=True)
class Loaders:
    train: TrainLoader
    evaluate: EvaluationLoader

    def facts(self) -> dict[str, list[str] | None]:
        """What a checkpoint holds of the data: the names of the classes, where they are known."""
        return {"classes": self.evaluate.classes}

    def stalled(self, seconds: float) -> Path | None:
        """Return a file whose reading has lasted for more than so many seconds."""
        return self.train.stalled(seconds) or self.evaluate.stalled(seconds)

    def close(self) -> None:
        """End all worker processes."""
        self.train.close()
        self.evaluate.close()


def build_loaders(
    plan: Plan,
    *,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    local_world_size: int = 1,
    change_order: ChangeOrder | None = None,
    change_image: ChangeImage | None = None,
    skipped: Collection[str] = (),
) -> Loaders:
    """Build one rank's loaders; those of class folders are without the images `skipped`."""
    config = plan.config
    if isinstance(config.dataloader, schema.SyntheticLoader):
        return Loaders(SyntheticTrain(plan, config.dataloader.batches, rank, device), SyntheticEval(plan, device))
    workers = worker_count(config.dataloader, local_world_size)
    shard = Shard(rank, world_size, workers, config.dataloader.prefetch, device)
    if isinstance(config.dataloader, schema.FFCVLoader):
        return Loaders(*_ffcv_loaders(plan, config.dataloader, shard, change_order, change_image))
    train, val = splits(ensure_folder(config.dataset), config.dataset, config.seed, skipped)
    check_counts(plan, len(train.classes), len(train.files), train.root)
    image, upright = config.image, config.dataset.exif_orientation
    images = TrainImages(train, image, seed=config.seed, upright=upright, change_image=change_image)
    ranks = {"rank": rank, "world_size": world_size, "local_world_size": local_world_size}
    return Loaders(ShuffledLoader(plan, images, shard, change_order), build_evaluation(plan, val, device, **ranks))


def build_evaluation(
    plan: Plan,
    folder: Folder,
    device: torch.device,
    *,
    rank: int = 0,
    world_size: int = 1,
    local_world_size: int = 1,
) -> EvaluationLoader:
    """Build the loader of another folder's images, prepared as the run's own; on one rank, its part of them."""
    values = plan.config.dataloader
    assert not isinstance(values, schema.SyntheticLoader)
    shard = Shard(rank, world_size, worker_count(values, local_world_size), values.prefetch, device)
    images = EvalImages(folder.root, folder.files, folder.labels, evaluated_input(plan))
    return EvalLoader(images, shard, plan.rank_eval_batch, folder.classes)


def _ffcv_loaders(
    plan: Plan,
    values: schema.FFCVLoader,
    shard: Shard,
    change_order: ChangeOrder | None,
    change_image: ChangeImage | None,
) -> tuple[TrainLoader, EvaluationLoader]:
    try:
        from launcher.data.ffcv.loader import build_ffcv_loaders
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        message = f"{missing} is not installed; make setup builds FFCV, dataloader=torchvision needs none"
        raise UserError(Problem(message, "dataloader", "ffcv")) from None
    return build_ffcv_loaders(plan, values, shard, change_order, change_image)


class ShuffledLoader(TrainLoader):
    """Training batches through torch's DataLoader with persistent workers."""

    def __init__(self, plan: Plan, images: TrainImages, shard: Shard, change_order: ChangeOrder | None):
        self._plan, self._shard, self._change_order = plan, shard, change_order
        self._images, self._keys = images, Keys()
        self._loader = data_loader(images, self._keys, shard)
        super().__init__(images.stalled, partial(shut_down, self._loader))

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        plan, samples = self._plan, len(self._images.labels)
        steps = train_batches(plan, self._shard, samples, epoch, first_step, self._change_order)
        self._keys.batches = ([(epoch, i, plan.loaded_size(step)) for i in indices.tolist()] for step, indices in steps)
        return Overlap(batches(self._loader), self._shard.device)


class EvalLoader(EvaluationLoader):
    """This rank's part of the images, each once, in batches whose last may be smaller."""

    def __init__(self, images: EvalImages, shard: Shard, batch_size: int, classes: list[str] | None = None):
        self._images, self._shard, self.classes = images, shard, classes
        self._keys = Keys()
        self._keys.batches = [
            batch.tolist() for batch in eval_indices(len(images.labels), batch_size, shard.rank, shard.world_size)
        ]
        self._loader = data_loader(images, self._keys, shard)
        super().__init__(images.stalled, partial(shut_down, self._loader))

    def __iter__(self) -> Iterator[Loaded]:
        return iter(Overlap(batches(self._loader), self._shard.device))

    def file(self, index: int) -> Path | None:
        return self._images.path(index)


class SyntheticTrain(TrainLoader):
    """A few batches of noise, on the device already, that take turns: the speed of the step without any loading."""

    def __init__(self, plan: Plan, batches: int, rank: int, device: torch.device):
        super().__init__()
        self._plan, self._rank, self._device = plan, rank, device
        sizes = plan.rank_batch, plan.train_size
        self._batches = [_noise(plan, device, rank, number, *sizes) for number in range(batches)]

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        return Overlap((self._numbered(step) for step in range(first_step, self._plan.steps_per_epoch)), self._device)

    def _numbered(self, step: int) -> Loaded:
        images, labels, _ = self._batches[step % len(self._batches)]
        first = step * self._plan.config.batch_size + self._rank * self._plan.rank_batch
        return images, labels, np.arange(first, first + len(labels))


class SyntheticEval(EvaluationLoader):
    """One batch of noise, so that evaluation has something to count."""

    def __init__(self, plan: Plan, device: torch.device):
        super().__init__()
        size = plan.image_side(plan.config.image.eval_size)
        self._batch = _noise(plan, device, 0, -1, plan.rank_eval_batch, size)

    def __iter__(self) -> Iterator[Loaded]:
        yield self._batch


def _noise(plan: Plan, device: torch.device, rank: int, number: int, count: int, size: int) -> Loaded:
    random = randomness.generator(plan.config.seed, "synthetic", rank, number)
    pixels = random.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    labels = random.integers(0, plan.config.dataset.classes or 1, count)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
    return images, torch.from_numpy(labels).to(device), np.arange(count)
