"""Images of the data set's own files, decoded in worker processes by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count
from launcher.data.loaders.base import DecodingLoader
from launcher.errors import Problem


@dataclass(frozen=True, config=STRICT)
class TorchvisionLoader(DecodingLoader):
    """Loader processes; `shuffle_buffer` are images, and concerns archives that are read through copies."""

    source = "launcher.data.sources.images:ImageFiles"

    name: Literal["torchvision"]
    workers: Annotated[int, Field(ge=0)] | Literal["auto"]
    prefetch: Count
    shuffle_buffer: Count
    decoder: Literal["auto", "simplejpeg", "pillow"]
    dct_scaling: bool

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        """Yield what is for 8-bit RGB alone."""
        if self.dct_scaling and not plan.config.dataset.is_rgb:
            message = "decodes JPEGs as 8-bit RGB alone; set dataloader.dct_scaling=false"
            yield Problem(message, "dataloader.dct_scaling", True)
