"""What `dataloader=synthetic` counts and opens; imports no torch before it opens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from launcher.config.schema import RunConfig
from launcher.data.index import Images
from launcher.data.loaders.base import Found, Opening, Source
from launcher.data.loaders.synthetic import SyntheticLoader
from launcher.data.workers import Report

if TYPE_CHECKING:
    from launcher.data.images import Reader


class RandomImages(Source):
    """Opens `Noise`; the counts are those of the config."""

    def reads_from(self, config: RunConfig) -> str | None:
        return None

    def find(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Found | None:
        return None

    def identity(self, config: RunConfig, images: Sequence[Images]) -> str:
        dataset, loader = config.dataset, config.dataloader
        assert isinstance(loader, SyntheticLoader)
        counts = (dataset.classes, dataset.train_samples, dataset.val_samples)
        return "-".join(["synthetic", *map(str, counts), str(loader.batches)])

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.loaders.noise import Noise  # note: torch

        plan, shard, loader = opening.plan, opening.shard, opening.plan.config.dataloader
        assert isinstance(loader, SyntheticLoader)
        train = Noise(plan, shard, plan.train_samples, range(loader.batches), plan.rank_batch, plan.full_size)
        one_batch = plan.rank_eval_batch * shard.world_size, [-1], plan.rank_eval_batch
        return train, Noise(plan, shard, *one_batch, plan.loaded_evaluation_size)
