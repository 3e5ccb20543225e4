"""Loaders of one rank: training batches of an epoch from any step on, and each evaluation sample once."""

from __future__ import annotations

import multiprocessing
import signal
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from launcher.config import schema
from launcher.data.available import check_counts
from launcher.data.cores import usable_cores
from launcher.data.device import Loaded, Overlap
from launcher.data.folder import Folder, scan
from launcher.data.pictures import CentredPictures, ChangeImage, CroppedPictures, Pictures
from launcher.data.sampling import epoch_order, eval_indices, rank_indices
from launcher.data.shapes import ensure_shapes
from launcher.data.share import ChangeOrder, Share
from launcher.data.synthetic import SyntheticTrain
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan

_MOST_WORKERS = 8


class TrainLoader(Protocol):
    """Yields (uint8 images [B, 3, H, W], int64 labels [B], int64 sample indices [B] on the CPU) of this rank."""

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        """The batches of an epoch from a step on; skipping costs nothing."""
        ...

    def close(self) -> None: ...


class EvaluationLoader(Protocol):
    """Yields the like of this rank's validation pictures, each once."""

    def __iter__(self) -> Iterator[Loaded]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Loaders:
    train: TrainLoader
    evaluate: EvaluationLoader

    def close(self) -> None:
        """End all worker processes."""
        self.train.close()
        self.evaluate.close()


def build_loaders(
    plan: Plan,
    *,
    rank: int,
    world_size: int,
    local_world_size: int,
    device: torch.device,
    change_order: ChangeOrder | None,
    change_image: ChangeImage | None,
) -> Loaders:
    """The loaders that a plan asks for, for one rank."""
    config = plan.config
    if isinstance(config.dataloader, schema.SyntheticLoader):
        synthetic = SyntheticTrain(plan, config.dataloader.batches, rank, device)
        return Loaders(synthetic, synthetic.evaluation())
    workers = worker_count(config.dataloader, local_world_size)
    share = Share(rank, world_size, workers, config.dataloader.prefetch, device)
    if isinstance(config.dataloader, schema.FFCVLoader):
        return Loaders(*_ffcv_loaders(plan, config.dataloader, share, change_order, change_image))
    train, val = pictures(config.dataset)
    check_counts(plan, len(train.classes), len(train.files), train.root)
    crops = CroppedPictures(train, config.image, plan.train_size, config.seed, change_image)
    centres = CentredPictures(
        val, config.image, plan.image_side(config.image.eval_resize), plan.image_side(config.image.eval_size)
    )
    return Loaders(
        ShuffledLoader(plan, crops, share, change_order),
        EvalLoader(centres, share, max(1, config.eval_batch_size // world_size)),
    )


def _ffcv_loaders(
    plan: Plan,
    values: schema.FFCVLoader,
    share: Share,
    change_order: ChangeOrder | None,
    change_image: ChangeImage | None,
) -> tuple[TrainLoader, EvaluationLoader]:
    try:
        from launcher.data.ffcv_loader import build_ffcv_loaders
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        message = f"{missing} is not installed; make setup builds FFCV, dataloader=torchvision needs none"
        raise UserError(Problem(message, "dataloader", "ffcv")) from None
    return build_ffcv_loaders(plan, values, share, change_order, change_image)


def pictures(dataset: schema.Dataset) -> tuple[Folder, Folder]:
    """Training and validation pictures; the built-in ones are drawn if need be."""
    path = ensure_shapes(dataset) if dataset.kind == "shapes" else Path(str(dataset.path))
    return scan(path, "train"), scan(path, "val")


def worker_count(config: schema.TorchvisionLoader | schema.FFCVLoader, local_world_size: int) -> int:
    """Loader workers of one rank: so many as the config says, or its share of the cores."""
    if config.workers != "auto":
        return config.workers
    share = max(1, usable_cores() // local_world_size)
    # note: threads share one memory, processes do not
    return share if isinstance(config, schema.FFCVLoader) else min(_MOST_WORKERS, share)


class _Keys:
    """A batch sampler whose lists of keys are set before each epoch, so that workers keep no state."""

    def __init__(self) -> None:
        self.batches: Sequence[Sequence[Any]] | Iterator[Sequence[Any]] = ()

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self.batches)


class ShuffledLoader:
    """Training batches through torch's DataLoader with persistent workers."""

    def __init__(self, plan: Plan, pictures: CroppedPictures, share: Share, change_order: ChangeOrder | None):
        self._plan, self._share, self._change_order = plan, share, change_order
        self._samples = len(pictures.labels)
        self._keys = _Keys()
        self._loader = _data_loader(pictures, self._keys, share)
        self._finish = weakref.finalize(self, _shut_down, self._loader)

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        order = epoch_order(self._plan.config.seed, epoch, self._samples)
        if self._change_order is not None:
            order = self._change_order(order, epoch)
        share = self._share
        self._keys.batches = (
            [
                (epoch, int(i))
                for i in rank_indices(order, step, self._plan.config.batch_size, share.rank, share.world_size)
            ]
            for step in range(first_step, self._plan.steps_per_epoch)
        )
        return Overlap(map(_checked, self._loader), share.device)

    def close(self) -> None:
        self._finish()


class EvalLoader:
    """This rank's share of the validation pictures, each once, in batches whose last may be smaller."""

    def __init__(self, pictures: CentredPictures, share: Share, batch_size: int):
        self._share = share
        self._keys = _Keys()
        self._keys.batches = [
            batch.tolist() for batch in eval_indices(len(pictures.labels), batch_size, share.rank, share.world_size)
        ]
        self._loader = _data_loader(pictures, self._keys, share)
        self._finish = weakref.finalize(self, _shut_down, self._loader)

    def __iter__(self) -> Iterator[Loaded]:
        return iter(Overlap(map(_checked, self._loader), self._share.device))

    def close(self) -> None:
        self._finish()


def _data_loader(pictures: Pictures, keys: _Keys, share: Share) -> DataLoader[Any]:
    return DataLoader(
        pictures,
        batch_sampler=keys,  # type: ignore[arg-type]
        num_workers=share.workers,
        collate_fn=_collate,
        pin_memory=share.device.type == "cuda",
        persistent_workers=share.workers > 0,
        prefetch_factor=share.prefetch if share.workers else None,
        worker_init_fn=_start_worker if share.workers else None,
        generator=torch.Generator(),
        multiprocessing_context=_clean_processes() if share.workers else None,
    )


def _clean_processes() -> BaseContext:
    """Start workers from a process that has no threads.

    A rank runs threads of its own (gradients, collectives, pinning); a fork of it may inherit a lock that is held, and
    hang for ever.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _collate(samples: list[tuple[np.ndarray, int, int]] | UserError) -> Loaded | UserError:
    """Stack to uint8 [B, 3, H, W] in channels-last memory order, which is how pictures are decoded."""
    if isinstance(samples, UserError):
        return samples
    pixels, labels, indices = zip(*samples, strict=True)
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    return images, torch.tensor(labels), np.array(indices, dtype=np.int64)


def _checked(batch: Loaded | UserError) -> Loaded:
    if isinstance(batch, UserError):
        raise batch
    return batch


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    # note: Ctrl-C and a scheduler's SIGTERM reach the workers too, but their rank still needs them to stop cleanly
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _shut_down(loader: DataLoader[Any]) -> None:
    iterator = getattr(loader, "_iterator", None)
    if iterator is None:
        return
    iterator._shutdown_workers()
    for worker in iterator._workers:
        worker.kill()
        worker.join()
