"""Random images on the device, to measure steps without loading."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count
from launcher.config.schema import RunConfig
from launcher.data.loaders.base import Loader

if TYPE_CHECKING:
    from launcher.data.images import Reader
    from launcher.data.index import Images
    from launcher.data.inspection import Inspection
    from launcher.data.loaders.base import Opening
    from launcher.data.workers import Report


@dataclass(frozen=True, config=STRICT)
class SyntheticLoader(Loader):
    """Random images on the device, to measure steps without loading."""

    reads = False

    name: Literal["synthetic"]
    batches: Count

    def reads_from(self, config: RunConfig) -> str | None:
        return None

    def inspect(
        self, config: RunConfig, must_exist: bool, skipped: Collection[str] | None, report: Report
    ) -> Inspection:
        # note: every command reads the values in this file
        from launcher.data.inspection import Inspection, check_counted

        check_counted(config.dataset)
        return Inspection(config, [])

    def identity(self, config: RunConfig, skipped: Collection[str] | None, images: Sequence[Images]) -> str:
        counts = (config.dataset.classes, config.dataset.train_samples, config.dataset.val_samples)
        return "-".join(["synthetic", *map(str, counts), str(self.batches)])

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.loaders.noise import Noise  # note: torch

        plan, shard = opening.plan, opening.shard
        train = Noise(plan, shard, plan.train_samples, range(self.batches), plan.rank_batch, plan.full_size)
        one_batch = plan.rank_eval_batch * shard.world_size, [-1], plan.rank_eval_batch
        return train, Noise(plan, shard, *one_batch, plan.loaded_evaluation_size)
