"""Images from FFCV files, decoded in threads; the values of the files."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, AnyPath, Count, Probability
from launcher.data.loaders.base import DecodingLoader


@dataclass(frozen=True, config=STRICT)
class FFCVFile:
    """Options of an FFCV file: the longest side in pixels, and how images are stored (FFCV's proportion mode)."""

    max_side: Annotated[int, Field(ge=16, le=4096)]
    jpeg_share: Probability
    quality: Annotated[int, Field(ge=1, le=100)]


@dataclass(frozen=True, config=STRICT)
class FFCVLoader(DecodingLoader):
    """Images from FFCV files; `workers` are threads per rank."""

    source = "launcher.data.ffcv.inspection:FFCVFiles"
    # note: threads share one memory, processes do not
    most_workers = sys.maxsize
    in_processes = False

    name: Literal["ffcv"]
    workers: Count | Literal["auto"]
    prefetch: Count
    folder: AnyPath | None
    train: AnyPath | None
    val: AnyPath | None
    os_cache: bool | Literal["auto"]
    decoder: Literal["auto", "simplejpeg", "pillow", "ffcv"]
    dct_scaling: bool
    files: FFCVFile
