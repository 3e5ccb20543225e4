"""Loaders of one rank: training batches of an epoch from any step on, and each evaluation sample once."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from launcher import randomness
from launcher.config import schema
from launcher.data.batch import Loaded, Overlap
from launcher.data.folder import Folder, splits
from launcher.data.following import worker_count
from launcher.data.images import ChangeImage, EvalImages, TrainImages
from launcher.data.inspect import check_counts
from launcher.data.sampling import ChangeOrder, Shard, epoch_order, eval_indices, rank_indices
from launcher.data.shapes import ensure_folder
from launcher.data.worker_processes import Keys, batches, data_loader, shut_down
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan


class TrainLoader(Protocol):
    """Yields (uint8 images [B, 3, H, W], int64 labels [B], int64 sample indices [B] on the CPU) of this rank."""

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        """The batches of an epoch from a step on; skipping costs nothing."""
        ...

    def stalled(self, seconds: float) -> Path | None:
        """A file that has been read for more than so many seconds."""
        ...

    def close(self) -> None: ...


class EvaluationLoader(Protocol):
    """Yields the like of this rank's validation pictures, each once.

    `classes` are the names of the labels, where they are known.
    """

    classes: list[str] | None

    def __iter__(self) -> Iterator[Loaded]: ...

    def file(self, index: int) -> Path | None:
        """The picture file of a sample, where it has one of its own."""
        ...

    def stalled(self, seconds: float) -> Path | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Loaders:
    train: TrainLoader
    evaluate: EvaluationLoader

    def stalled(self, seconds: float) -> Path | None:
        """A file that has been read for more than so many seconds."""
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
        synthetic = SyntheticTrain(plan, config.dataloader.batches, rank, device)
        return Loaders(synthetic, synthetic.evaluation())
    workers = worker_count(config.dataloader, local_world_size)
    shard = Shard(rank, world_size, workers, config.dataloader.prefetch, device)
    if isinstance(config.dataloader, schema.FFCVLoader):
        return Loaders(*_ffcv_loaders(plan, config.dataloader, shard, change_order, change_image))
    train, val = splits(ensure_folder(config.dataset), config.dataset, config.seed, skipped)
    check_counts(plan, len(train.classes), len(train.files), train.root)
    image, upright = config.image, config.dataset.exif_orientation
    crops = TrainImages(train, image, seed=config.seed, upright=upright, change_image=change_image)
    return Loaders(ShuffledLoader(plan, crops, shard, change_order), _evaluation(plan, val, shard))


def build_evaluation(
    plan: Plan,
    pictures: Folder,
    device: torch.device,
    *,
    rank: int = 0,
    world_size: int = 1,
    local_world_size: int = 1,
) -> EvaluationLoader:
    """The pictures of a folder as the run evaluates its own; on one rank, its share."""
    values = plan.config.dataloader
    assert not isinstance(values, schema.SyntheticLoader)
    shard = Shard(rank, world_size, worker_count(values, local_world_size), values.prefetch, device)
    return _evaluation(plan, pictures, shard)


def _evaluation(plan: Plan, pictures: Folder, shard: Shard) -> EvalLoader:
    image, upright = plan.config.image, plan.config.dataset.exif_orientation
    sides = plan.image_side(image.eval_resize), plan.image_side(image.eval_size)
    centres = EvalImages(pictures, *sides, image.eval_interpolation, upright=upright)
    return EvalLoader(centres, shard, plan.rank_eval_batch)


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


class ShuffledLoader:
    """Training batches through torch's DataLoader with persistent workers."""

    def __init__(self, plan: Plan, pictures: TrainImages, shard: Shard, change_order: ChangeOrder | None):
        self._plan, self._shard, self._change_order = plan, shard, change_order
        self._pictures, self._samples = pictures, len(pictures.labels)
        self._keys = Keys()
        self._loader = data_loader(pictures, self._keys, shard)
        self._finish = weakref.finalize(self, shut_down, self._loader)

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        order = epoch_order(self._plan.config.seed, epoch, self._samples)
        if self._change_order is not None:
            order = self._change_order(order)
        plan, shard = self._plan, self._shard
        self._keys.batches = (
            [
                (epoch, int(i), plan.loaded_size(epoch * plan.steps_per_epoch + step))
                for i in rank_indices(order, step, plan.config.batch_size, shard.rank, shard.world_size)
            ]
            for step in range(first_step, plan.steps_per_epoch)
        )
        return Overlap(batches(self._loader), shard.device)

    def stalled(self, seconds: float) -> Path | None:
        return self._pictures.stalled(seconds)

    def close(self) -> None:
        self._finish()


class EvalLoader:
    """This rank's share of the validation pictures, each once, in batches whose last may be smaller."""

    def __init__(self, pictures: EvalImages, shard: Shard, batch_size: int):
        self._pictures, self._shard = pictures, shard
        self.classes: list[str] | None = pictures.classes
        self._keys = Keys()
        self._keys.batches = [
            batch.tolist() for batch in eval_indices(len(pictures.labels), batch_size, shard.rank, shard.world_size)
        ]
        self._loader = data_loader(pictures, self._keys, shard)
        self._finish = weakref.finalize(self, shut_down, self._loader)

    def __iter__(self) -> Iterator[Loaded]:
        return iter(Overlap(batches(self._loader), self._shard.device))

    def file(self, index: int) -> Path | None:
        return self._pictures.path(index)

    def stalled(self, seconds: float) -> Path | None:
        return self._pictures.stalled(seconds)

    def close(self) -> None:
        self._finish()


class SyntheticTrain:
    """A few batches of noise, on the device already, that take turns: the speed of the step without any loading."""

    def __init__(self, plan: Plan, batches: int, rank: int, device: torch.device):
        self._plan, self._rank, self._device = plan, rank, device
        self._batches = [self._draw(rank, number, plan.rank_batch, plan.train_size) for number in range(batches)]

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        return Overlap((self._numbered(step) for step in range(first_step, self._plan.steps_per_epoch)), self._device)

    def evaluation(self) -> SyntheticEval:
        side = self._plan.image_side(self._plan.config.image.eval_size)
        return SyntheticEval([self._draw(0, -1, self._plan.rank_eval_batch, side)])

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
