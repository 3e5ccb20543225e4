"""FFCV files of the images where they exist, otherwise the images, by one of the other loaders."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.choices import LoaderConfig
from launcher.config.fields import STRICT, AnyPath, Count
from launcher.data.loaders.ffcv import FFCVFile
from launcher.errors import UserError

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig

_FILES, _IMAGES = "ffcv", "torchvision"
_KEYS_OF_FILES = ("folder", "train", "val", "os_cache", "files")


@dataclass(frozen=True, config=STRICT)
class AutoLoader(LoaderConfig):
    """Values of both loaders; those that are set are the values of the one that takes its place."""

    name: Literal["auto"]
    workers: Annotated[int, Field(ge=0)] | Literal["auto"]
    prefetch: Count
    shuffle_buffer: Count
    decoder: Literal["auto", "simplejpeg", "pillow", "ffcv"]
    dct_scaling: bool
    folder: AnyPath | None
    train: AnyPath | None
    val: AnyPath | None
    os_cache: bool | Literal["auto"]
    files: FFCVFile

    def instead(self, typed: Collection[str], config_with: Callable[[str], RunConfig]) -> tuple[str, str]:
        """Choose the files of `train prepare` if they are of the images of today, otherwise the images."""
        if option := self._only(typed):
            return option, ""
        from launcher.data.ffcv.dataset import FFCVDataset  # note: every command reads the values in this file

        with suppress(UserError):
            config = config_with(_FILES)
            files = FFCVDataset.of(config)
            if files.dataset.folds or not files.are_written():
                return _IMAGES, ""
            folder = files.path("train").parent
            from launcher.data.ffcv.inspection import are_of_images

            if are_of_images(config):
                return _FILES, f"reading the FFCV files in {folder}; dataloader={_IMAGES} reads the images instead"
            return _IMAGES, f"{folder} has other images or rotations; remove it to run train prepare"
        return _IMAGES, ""

    def _only(self, typed: Collection[str]) -> str | None:
        """Return the loader that alone has the keys that are set, or accepts their values."""
        if self.decoder == "ffcv" or any(key in typed for key in _KEYS_OF_FILES):
            return _FILES
        return _IMAGES if "shuffle_buffer" in typed or self.workers == 0 else None
