"""Loaders of one rank: training batches of an epoch from any step on, and every evaluation sample once."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from launcher.data.batch import START, Loaded, Moment, Overlap
from launcher.data.images import ChangeImage, Reader
from launcher.data.index import Images, read_index
from launcher.data.loaders.base import Opening, loader_of, source_of
from launcher.data.sampling import ChangeOrder, Request, Shard, eval_indices, train_requests
from launcher.data.worker_processes import WorkerProcesses
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks

# Images of a batch of the first ones.
_AT_ONCE = 256


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

    def spread(self, count: int) -> Iterator[Tensor]:
        """Yield training images at equal distances on the device, the same on all ranks, as in the first epoch."""
        moment, view = Moment(self.plan.config.seed, 0, 0, self.plan.total_steps), self.plan.full_view
        # note: the first of class folders are of one class
        samples = np.arange(few := min(count, self.reader.samples)) * self.reader.samples // few
        starts = range(0, few, _AT_ONCE)
        requests = (Request(moment, samples[start : start + _AT_ONCE], view) for start in starts)
        for images, _, _ in Overlap(self.reader.batches(requests), self.shard.device):
            yield images


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
    """The loaders of a rank; test: the images of `dataset.test_path` if the index has them."""

    train: TrainLoader
    evaluate: EvaluationLoader
    test: Images | None = None

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
    index: Path | None = None,
) -> Loaders:
    """Build one rank's loaders of the images in the `index` of a run, or else of those that are there but `skipped`.

    `classes` are those of the run's checkpoint: labels are their places.
    """
    shard, source = _shard(plan, ranks), source_of(plan.config)
    listed = read_index(index) if index else {}
    images = [listed["train"], listed["val"]] if listed else source.list(plan.config, skipped)
    train, val = source.open(Opening(plan, shard, change_image, images, classes))
    return Loaders(TrainLoader(plan, train, shard, change_order), _evaluation(plan, shard, val), listed.get("test"))


def build_evaluation(plan: Plan, images: Images | Reader, ranks: Ranks) -> EvaluationLoader:
    """Build the loader of a rank's part of other images or records, prepared as the run's validation images."""
    shard = _shard(plan, ranks)
    if isinstance(images, Images):
        task = plan.config.task
        images = WorkerProcesses(task.records(images, task.evaluation_decoder(plan.config)), shard)
    return _evaluation(plan, shard, images)


def _evaluation(plan: Plan, shard: Shard, reader: Reader) -> EvaluationLoader:
    return EvaluationLoader(reader, shard, plan.rank_eval_batch, min(plan.loaded_evaluation_size))


def _shard(plan: Plan, ranks: Ranks) -> Shard:
    loader = loader_of(plan.config)
    workers = loader.workers_here(plan, ranks.local_world_size)
    return Shard(ranks.rank, ranks.world_size, workers, loader.batches_ahead, ranks.device)
