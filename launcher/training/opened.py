"""A run folder as a rank opens it: the resolved config, the process group, and the trainer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.algorithms.base import Teacher
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.data.loaders.base import WorkerLoader
from launcher.data.unreadable import read_skipped
from launcher.data.workers import start_server
from launcher.rank.group import Ranks, join_ranks
from launcher.records.run_folder import RunFolder
from launcher.training.networks import read_initial, read_teacher
from launcher.training.trainer import Trainer, build_trainer


@dataclass(frozen=True)
class Opened:
    """A run on this rank, in its process group; `teacher` is None without one."""

    folder: RunFolder
    config: RunConfig
    ranks: Ranks
    teacher: Teacher | None

    @contextmanager
    def trainer(self, config: RunConfig, state: dict[str, Any] | None = None) -> Iterator[Trainer]:
        """Build the trainer of the run's config or a changed one, and close its loaders at the end.

        state: the checkpoint's that it will load; without one it has the run's initial weights.

        Raises UserError if a file of the run is missing or damaged.
        """
        initial = read_initial(self.folder) if state is None and config.model.weights is not None else None
        skipped, classes = read_skipped(self.folder.skipped, config.dataset), (state or {}).get("classes")
        trainer = build_trainer(config, self.ranks, skipped, initial, self.teacher, classes, self.folder.index)
        yield trainer
        trainer.loaders.close()
        if trainer.train_step.captured:
            # note: NCCL ends only once no graph has its collectives
            trainer.train_step.captured.forget()


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Read the config of a run folder, join its ranks, and read its teacher."""
    folder = RunFolder(path)
    config = read(folder.config)
    if isinstance(config.dataloader, WorkerLoader) and config.dataloader.has_processes:
        start_server()
    with join_ranks(config) as ranks:
        yield Opened(folder, config, ranks, read_teacher(folder, config, ranks.device))
