"""Images with masks, decoded in worker processes by torch's DataLoader."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count
from launcher.data.loaders.base import WorkerLoader


@dataclass(frozen=True, config=STRICT)
class MaskLoader(WorkerLoader):
    """Images with masks from two folders of files, decoded in loader processes."""

    gives = "mask"
    source = "launcher.data.masks.inspection:Pairs"

    name: Literal["masks"]
    workers: Annotated[int, Field(ge=0)] | Literal["auto"]
    prefetch: Count
