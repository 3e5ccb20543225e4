"""What every data loader declares without tensors: its values, and how a `Source` finds, counts and opens images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from launcher.compute.probe import rank_cores
from launcher.config.choices import LoaderConfig
from launcher.config.fields import STRICT, Count
from launcher.config.schema import RunConfig

if TYPE_CHECKING:
    from launcher.data.images import ChangeImage, Reader
    from launcher.data.index import Images
    from launcher.data.inspection import Inspection
    from launcher.data.sampling import Shard
    from launcher.data.workers import Report
    from launcher.plan.plan import Plan

# Loader processes of a rank by default.
MOST_PROCESSES = 24
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


class Source(ABC):
    """Lists, counts, identifies and opens what a data loader reads."""

    def reads_from(self, config: RunConfig) -> str | None:
        """Return the folder of what it reads; None if the config has none."""
        return config.dataset.path

    @abstractmethod
    def list(self, config: RunConfig, skipped: Collection[str]) -> Sequence[Images]:
        """List the training and validation images without those `skipped`, for `open`; empty if it needs none."""

    @abstractmethod
    def inspect(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Inspection:
        """Count the classes and images, as `data.inspection.inspect_data`."""

    @abstractmethod
    def identity(self, config: RunConfig, skipped: Collection[str] | None, images: Sequence[Images]) -> str:
        """Return the hash of the images, as `data.identity.identity`."""

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

    def workers_here(self, plan: Plan, ranks: int) -> int:
        """Return the workers of each of the ranks on this machine."""
        return self.worker_count(rank_cores(ranks))

    @property
    def batches_ahead(self) -> int:
        """The batches that each worker loads ahead."""
        return 0


@dataclass(frozen=True, config=STRICT)
class DecodingLoader(Loader):
    """Base of the values of loaders that decode images in workers."""

    most_workers: ClassVar[int]

    workers: int | Literal["auto"]
    prefetch: Count
    decoder: str
    dct_scaling: bool

    def worker_count(self, cores: int) -> int:
        return min(self.most_workers, cores) if self.workers == "auto" else self.workers

    @property
    def batches_ahead(self) -> int:
        return self.prefetch


def source_of(config: RunConfig) -> Source:
    """Return what a run's data loader reads; imports it at its first use, since every command reads the values."""
    module, _, name = loader_of(config).source.partition(":")
    return getattr(import_module(module), name)()  # type: ignore[no-any-return]


def loader_of(config: RunConfig) -> Loader:
    """Return the values of a run's data loader."""
    assert isinstance(config.dataloader, Loader)
    return config.dataloader
