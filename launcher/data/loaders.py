"""Loaders of one rank: training batches of an epoch from any step on, and every evaluation sample once."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from launcher import randomness
from launcher.config import schema
from launcher.data.batch import START, Loaded, Overlap
from launcher.data.classes import blank_labels
from launcher.data.folder import Folder
from launcher.data.images import ChangeImage, Reader
from launcher.data.inspection import check_counts
from launcher.data.records import Records
from launcher.data.sampling import ChangeOrder, Request, Shard, eval_indices, train_requests
from launcher.data.sources.find import read_splits
from launcher.data.worker_processes import WorkerProcesses
from launcher.data.workers import worker_count
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from launcher.rank.signs import STOP


@dataclass
class TrainLoader:
    """This rank's training batches on its device, in each epoch's order."""

    plan: Plan
    reader: Reader
    shard: Shard
    change_order: ChangeOrder | None

    def epoch(self, epoch: int, first_step: int = 0) -> Overlap:
        """Return an epoch's batches from a step on; earlier ones are not loaded."""
        reader = self.reader
        requests = train_requests(
            self.plan, self.shard, reader.labels, epoch, first_step, self.change_order, reader.archives
        )
        return Overlap(reader.batches(requests), self.shard.device)


@dataclass
class EvaluationLoader:
    """This rank's evaluation batches on its device: each sample once, the last batch may be smaller."""

    reader: Reader
    shard: Shard
    batch_size: int
    view: int

    def __iter__(self) -> Iterator[Loaded]:
        batches = eval_indices(self.reader.samples, self.batch_size, self.shard.rank, self.shard.world_size)
        requests = (Request(START, indices, self.view) for indices in batches)
        return iter(Overlap(self.reader.batches(requests), self.shard.device))

    def close(self) -> None:
        """End all worker processes and threads."""
        self.reader.close()


@dataclass(frozen=True)
class Loaders:
    train: TrainLoader
    evaluate: EvaluationLoader

    def facts(self) -> dict[str, list[str] | None]:
        """Return what a checkpoint stores about the data: the class names, if available."""
        return {"classes": self.evaluate.reader.classes}

    def stalled(self, seconds: float) -> Path | str | None:
        """Return a file whose read has taken more than `seconds`."""
        return self.train.reader.stalled(seconds) or self.evaluate.reader.stalled(seconds)

    def close(self) -> None:
        """End all worker processes and threads."""
        self.train.reader.close()
        self.evaluate.reader.close()


def build_loaders(
    plan: Plan,
    ranks: Ranks,
    *,
    change_order: ChangeOrder | None = None,
    change_image: ChangeImage | None = None,
    skipped: Collection[str] = (),
    classes: Sequence[str] | None = None,
) -> Loaders:
    """Build one rank's loaders; loaders of class folders omit the images `skipped`.

    `classes` are those of the run's checkpoint: labels are their places.
    """
    config, values, shard = plan.config, plan.config.dataloader, _shard(plan, ranks)
    train: Reader
    if isinstance(values, schema.SyntheticLoader):
        train = Noise(plan, shard, plan.train_samples, range(values.batches), plan.rank_batch, plan.full_view)
        one_batch = plan.rank_eval_batch * shard.world_size, [-1], plan.rank_eval_batch
        evaluate = _evaluation(plan, shard, Noise(plan, shard, *one_batch, plan.evaluation_view))
    elif isinstance(values, schema.FFCVLoader):
        from launcher.data.ffcv.loader import open_readers  # note: OpenCV, which class folders need not

        train, val = open_readers(plan, values, shard, change_image, classes)
        evaluate = _evaluation(plan, shard, val)
    else:
        with STOP.waiting():
            folder, val_folder = read_splits(config, skipped, classes=classes)
        check_counts(plan, len(folder.classes), len(folder.files), folder.root)
        train = WorkerProcesses(Records(folder, config.task.decoder(config, change_image)), shard)
        evaluate = build_evaluation(plan, val_folder, ranks)
    return Loaders(TrainLoader(plan, train, shard, change_order), evaluate)


def build_evaluation(plan: Plan, folder: Folder, ranks: Ranks) -> EvaluationLoader:
    """Build the loader of a rank's part of a folder's images, prepared as the run's validation images."""
    shard = _shard(plan, ranks)
    return _evaluation(
        plan, shard, WorkerProcesses(Records(folder, plan.config.task.evaluation_decoder(plan.config)), shard)
    )


def _evaluation(plan: Plan, shard: Shard, reader: Reader) -> EvaluationLoader:
    return EvaluationLoader(reader, shard, plan.rank_eval_batch, plan.evaluation_view)


def _shard(plan: Plan, ranks: Ranks) -> Shard:
    values = plan.config.dataloader
    if isinstance(values, schema.SyntheticLoader):
        return Shard(ranks.rank, ranks.world_size, 0, 0, ranks.device)
    workers = worker_count(values, ranks.local_world_size)
    return Shard(ranks.rank, ranks.world_size, workers, values.prefetch, ranks.device)


class Noise(Reader):
    """A few batches of noise on the device, used in turn, to measure the step without loading."""

    def __init__(self, plan: Plan, shard: Shard, samples: int, numbers: Iterable[int], count: int, size: int):
        blank = blank_labels(plan.config.task, plan.config.dataset.classes or 1)
        self.labels = blank[np.arange(samples) % len(blank)]
        self._size, self._batches = size, []
        for number in numbers:
            random = randomness.generator(plan.config.seed, "synthetic", shard.rank, number)
            pixels = torch.from_numpy(random.integers(0, 256, (count, size, size, 3), dtype=np.uint8))
            labels = torch.from_numpy(blank[random.integers(0, len(blank), count)])
            self._batches.append((pixels.permute(0, 3, 1, 2).to(shard.device), labels.to(shard.device)))

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        for request in requests:
            yield *self._batches[request.moment.step % len(self._batches)], request.indices

    def measure(self, index: int) -> tuple[int, int, int]:
        return self._size, self._size, 3 * self._size**2

    def close(self) -> None:
        """Release the memory of the batches."""
        self._batches.clear()
