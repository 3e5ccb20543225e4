"""What every data loader declares without tensors: its values, and how a `Source` finds, counts and opens images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic.dataclasses import dataclass

from launcher.compute.host_memory import usable_memory
from launcher.compute.probe import free_shared_memory, has_driver, rank_cores
from launcher.config.choices import LoaderConfig
from launcher.config.declaration import Size
from launcher.config.fields import STRICT, Count
from launcher.config.schema import RunConfig

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.data.images import ChangeImage, Reader
    from launcher.data.index import Images
    from launcher.data.sampling import Shard
    from launcher.data.workers import Report
    from launcher.plan.plan import Plan

# Loader processes of a rank by default.
MOST_PROCESSES = 24
# Bytes of processes, measured on a CPU as PSS (shared memory divided among those that share it), with 0 to 4 workers of
# `train recipe=mild model=resnet18`: the command, a rank without its step, the rank's fork server, and a worker's two
# processes, of which one reads for evaluations. That of a rank with a CUDA context is assumed.
_COMMAND, _RANK, _CUDA_RANK, _SERVER, _WORKER = 400 * 10**6, 800 * 10**6, 3 * 10**9, 380 * 10**6, 50 * 10**6
# Batches that a worker holds beside those ahead: as decoded, and stacked.
_MADE = 2
Notes = list[str]


@plain_dataclass(frozen=True)
class Opening:
    """What a rank opens: its part of a plan's batches of the training and validation `images`.

    change_image: as the algorithms set it. classes: those of the run's checkpoint; labels are their places.
    """

    plan: Plan
    shard: Shard
    change_image: ChangeImage | None
    images: Sequence[Images]
    classes: Sequence[str] | None


class Found(NamedTuple):
    """Training and validation images with the labels of the task, at the path `where` of a key.

    classes: their number, if they have no names. bad: images that `dataset.skip_bad` skips, with the reasons that they
    `cannot` be used.
    """

    images: Sequence[Images]
    where: Path | str
    key: str = "dataset.path"
    classes: int | None = None
    bad: Mapping[str, str] = {}
    cannot: str = "decoded"
    notes: Sequence[str] = ()


class Source(ABC):
    """Lists, finds, identifies and opens what a data loader reads."""

    def reads_from(self, config: RunConfig) -> str | None:
        """Return the folder of what it reads; None if the config has none."""
        return config.dataset.path

    def list(self, config: RunConfig, skipped: Collection[str] | None) -> Sequence[Images]:
        """List the training and validation images without those `skipped`, for `open`; empty if it needs none.

        None skips those that are unreadable.
        """
        return ()

    @abstractmethod
    def find(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Found | None:
        """Find what `data.inspection.inspect_data` counts; None if the config has the counts."""

    def identity(self, config: RunConfig, images: Sequence[Images]) -> str | None:
        """Return the hash of what it reads, as `data.identity.identity`; None for lists of images."""
        return None

    @abstractmethod
    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        """Open a rank's readers of training and validation images."""

    def held_out(self, config: RunConfig, classes: Sequence[str], report: Report) -> tuple[Images, Notes] | None:
        """Return the records of `dataset.test_path`, and notes; None for images, which match by their labels.

        Raises UserError as it lists.
        """
        return None

    def other(self, path: str, plan: Plan, facts: Mapping[str, Any]) -> Reader | Images | None:
        """Return other records to evaluate a run on, or their reader; None for images, which match by their labels.

        facts: those of the run's task.
        """
        return None


@dataclass(frozen=True, config=STRICT)
class Loader(LoaderConfig):
    """Base of the values of data loaders in this package; `source` is the place of its `Source`, as module:class."""

    source: ClassVar[str]

    def worker_count(self, cores: int) -> int:
        """Return the workers of a rank that has so many cores."""
        return 0

    def most_workers_here(self, plan: Plan, ranks: int) -> dict[str, int]:
        """Return the workers of each of the ranks on this machine that its cores, and its memory with `auto`, allow."""
        return {"cores": self.worker_count(rank_cores(ranks))}

    def workers_here(self, plan: Plan, ranks: int) -> int:
        """Return the workers of each of the ranks on this machine."""
        return min(self.most_workers_here(plan, ranks).values())

    @property
    def batches_ahead(self) -> int:
        """The batches that each worker loads ahead."""
        return 0

    def shared_bytes(self, plan: Plan) -> int:
        """Return the shared memory of the batches that a worker loads ahead, in bytes."""
        return 0

    def host_bytes(self, plan: Plan, ranks: int, workers: int) -> int:
        """Return the host memory of a run with so many ranks here and workers of each, without a CPU's steps."""
        on_gpus = plan.config.launch.device != "cpu" and has_driver()
        return _COMMAND + ranks * (_CUDA_RANK if on_gpus else _RANK)


@dataclass(frozen=True, config=STRICT)
class WorkerLoader(Loader):
    """Base of the values of loaders that decode images in workers, which are processes or threads."""

    most_workers: ClassVar[int] = MOST_PROCESSES
    in_processes: ClassVar[bool] = True

    workers: int | Literal["auto"]
    prefetch: Count

    @property
    def has_processes(self) -> bool:
        """Whether workers are processes, which a server forks."""
        return self.in_processes and self.workers != 0

    def worker_count(self, cores: int) -> int:
        return min(self.most_workers, cores) if self.workers == "auto" else self.workers

    def most_workers_here(self, plan: Plan, ranks: int) -> dict[str, int]:
        """Return them; with `auto`, half of shared memory holds all batches ahead, half of the host's all processes."""
        most = super().most_workers_here(plan, ranks)
        if self.workers != "auto" or not self.in_processes:
            return most
        if (free := free_shared_memory()) is not None:
            most["shared memory"] = max(1, free // 2 // (ranks * self.shared_bytes(plan)))
        most["host memory"] = max(1, self.fitting_workers(plan, ranks, most["cores"], usable_memory().total // 2))
        return most

    def fitting_workers(self, plan: Plan, ranks: int, most: int, memory: int) -> int:
        """Return the workers of each rank, `most` or fewer, with which a run takes at most so many bytes; or 0."""
        return next((count for count in range(most, 0, -1) if self.host_bytes(plan, ranks, count) <= memory), 0)

    @property
    def batches_ahead(self) -> int:
        return self.prefetch

    def image_bytes(self, plan: Plan, size: Size) -> int:
        """Return the bytes of an image of a batch."""
        import numpy as np  # note: every command reads the values in this file

        from launcher.data.pixel_types import PixelType

        of_type = PixelType.of(plan.config.dataset)
        return of_type.channels * np.dtype(of_type.loaded).itemsize * math.prod(size)

    def batch_bytes(self, plan: Plan, batches: int) -> int:
        """Return the bytes of so many batches of a rank, for training or evaluation, whichever are more."""
        evaluated = min(batches * plan.rank_eval_batch, (plan.config.dataset.val_samples or 0) // plan.world_size)
        training = batches * plan.rank_batch * self.image_bytes(plan, plan.full_size)
        return max(training, evaluated * self.image_bytes(plan, plan.loaded_evaluation_size))

    def shared_bytes(self, plan: Plan) -> int:
        return self.batch_bytes(plan, self.prefetch) if self.in_processes else 0

    def host_bytes(self, plan: Plan, ranks: int, workers: int) -> int:
        """Return it with the workers and all batches ahead."""
        batches = workers * (self.prefetch + _MADE) if self.in_processes else self.prefetch + 1
        processes = workers * _WORKER + _SERVER if workers and self.in_processes else 0
        return super().host_bytes(plan, ranks, workers) + ranks * (processes + self.batch_bytes(plan, batches))


@dataclass(frozen=True, config=STRICT)
class DecodingLoader(WorkerLoader):
    """Base of the values of loaders that choose how JPEGs are decoded."""

    decoder: str
    dct_scaling: bool


def source_of(config: RunConfig) -> Source:
    """Return what a run's data loader reads; imports it at its first use, since every command reads the values."""
    module, _, name = loader_of(config).source.partition(":")
    return getattr(import_module(module), name)()  # type: ignore[no-any-return]


def loader_of(config: RunConfig) -> Loader:
    """Return the values of a run's data loader."""
    assert isinstance(config.dataloader, Loader)
    return config.dataloader
