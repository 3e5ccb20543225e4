"""Images of the data set's own files, decoded in worker processes by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.compute.probe import free_shared_memory
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count
from launcher.data.loaders.base import MOST_PROCESSES, DecodingLoader
from launcher.errors import Problem

if TYPE_CHECKING:
    from launcher.plan.plan import Plan


@dataclass(frozen=True, config=STRICT)
class TorchvisionLoader(DecodingLoader):
    """Loader processes; `shuffle_buffer` are images, and concerns archives that are read through copies."""

    source = "launcher.data.sources.images:ImageFiles"
    most_workers = MOST_PROCESSES

    name: Literal["torchvision"]
    workers: Annotated[int, Field(ge=0)] | Literal["auto"]
    prefetch: Count
    shuffle_buffer: Count
    decoder: Literal["auto", "simplejpeg", "pillow"]
    dct_scaling: bool

    def workers_here(self, plan: Plan, ranks: int) -> int:
        """Return the workers of each rank; with `auto`, half of shared memory holds the batches of all."""
        workers = super().workers_here(plan, ranks)
        if self.workers != "auto" or (free := free_shared_memory()) is None:
            return workers
        return max(1, min(workers, free // 2 // (ranks * self.prefetched_bytes(plan))))

    def prefetched_bytes(self, plan: Plan) -> int:
        """Return the bytes of the batches of a worker: images at the full training size."""
        import numpy as np  # note: every command reads the values in this file

        from launcher.data.pixel_types import PixelType

        of_type = PixelType.of(plan.config.dataset)
        bytes_of_pixel = of_type.channels * np.dtype(of_type.loaded).itemsize
        return self.prefetch * plan.rank_batch * bytes_of_pixel * plan.per_step(plan.full_view)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        """Yield what is for 8-bit RGB alone."""
        if self.dct_scaling and not plan.config.dataset.is_rgb:
            message = "decodes JPEGs as 8-bit RGB alone; set dataloader.dct_scaling=false"
            yield Problem(message, "dataloader.dct_scaling", True)
