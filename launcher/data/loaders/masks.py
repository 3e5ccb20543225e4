"""Images with masks, decoded in worker processes by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count
from launcher.config.schema import RunConfig
from launcher.data.loaders.base import MOST_PROCESSES, Loader

if TYPE_CHECKING:
    from launcher.data.images import Reader
    from launcher.data.index import Images
    from launcher.data.inspection import Inspection
    from launcher.data.loaders.base import Opening
    from launcher.data.workers import Report
    from launcher.plan.plan import Plan


@dataclass(frozen=True, config=STRICT)
class MaskLoader(Loader):
    """Images with masks from two folders of files, decoded in loader processes."""

    gives = "mask"

    name: Literal["masks"]
    workers: Annotated[int, Field(ge=0)] | Literal["auto"]
    prefetch: Count

    def reads_from(self, config: RunConfig) -> str | None:
        return config.dataset.path

    def inspect(
        self, config: RunConfig, must_exist: bool, skipped: Collection[str] | None, report: Report
    ) -> Inspection:
        # note: every command reads the values in this file
        from launcher.data.inspection import Inspection, has_counts
        from launcher.data.masks.inspection import inspect_pairs

        if not config.dataset.is_built_in and has_counts(config.dataset) and not must_exist:
            return Inspection(config, [])
        return inspect_pairs(config, skipped, report)

    def identity(self, config: RunConfig, skipped: Collection[str] | None, images: Sequence[Images]) -> str:
        from launcher.data.identity import of_source

        return of_source(config, lambda: images[:2] or self.images(config, skipped or ()))

    def images(self, config: RunConfig, skipped: Collection[str]) -> Sequence[Images]:
        from launcher.data.masks.pairs import read_pairs

        return read_pairs(config, skipped)

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.worker_processes import WorkerProcesses

        config, task = opening.plan.config, opening.plan.config.task
        train, val = opening.images
        reader = WorkerProcesses(task.records(train, task.decoder(config, opening.change_image)), opening.shard)
        return reader, WorkerProcesses(task.records(val, task.evaluation_decoder(config)), opening.shard)

    def held_out(self, config: RunConfig, classes: Sequence[str], report: Report) -> tuple[Images, list[str]]:
        from launcher.data.masks.inspection import held_out_pairs

        return held_out_pairs(config, classes, report)

    def other(self, path: str, plan: Plan, facts: Mapping[str, Any]) -> Images:
        from launcher.data.masks.pairs import evaluation_pairs

        return evaluation_pairs(path, plan.config.dataset)

    def worker_count(self, cores: int) -> int:
        return min(MOST_PROCESSES, cores) if self.workers == "auto" else self.workers

    @property
    def batches_ahead(self) -> int:
        return self.prefetch
