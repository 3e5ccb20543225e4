"""The values of FFCV files and of their loader, without tensors."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, AnyPath, Count, Probability
from launcher.data.loaders.base import DecodingLoader


@dataclass(frozen=True, config=STRICT)
class FFCVFile:
    """Options of an FFCV file: the longest side in pixels, and how images are stored (FFCV's proportion mode).

    `restart_interval` is in JPEG blocks of 16 x 16 pixels; 0 writes no restart markers.
    """

    max_side: Annotated[int, Field(ge=16, le=4096)]
    jpeg_share: Probability
    quality: Annotated[int, Field(ge=1, le=100)]
    restart_interval: Annotated[int, Field(ge=0, le=65535)]


@dataclass(frozen=True, config=STRICT)
class FFCVFiles(FFCVFile):
    """Files of `train prepare`; `small_side` adds training images with that longest side."""

    small_side: Annotated[int, Field(ge=16, le=4096)] | None
    small_jpeg_share: Probability


@dataclass(frozen=True, config=STRICT)
class FFCVValues(DecodingLoader):
    """Values of images from FFCV files; `workers` are threads per rank."""

    # note: threads share one memory, processes do not
    most_workers = sys.maxsize

    name: Literal["ffcv"]
    workers: Count | Literal["auto"]
    prefetch: Count
    folder: AnyPath | None
    train: AnyPath | None
    val: AnyPath | None
    os_cache: bool | Literal["auto"]
    decoder: Literal["auto", "simplejpeg", "opencv", "torchvision", "pillow", "ffcv"]
    decode: Literal["whole", "crop"]
    dct_scaling: bool
    files: FFCVFiles

    def reads_small(self, plan: RunPlan, step: int) -> bool:
        """Return whether a step's crops come from the small images beside the full ones (`files.small_side`).

        They do if none is enlarged more than the same crop of the full image at the largest size.
        """
        if self.files.small_side is None:
            return False
        return plan.loaded_view(step) * self.files.max_side <= plan.full_view * self.files.small_side
