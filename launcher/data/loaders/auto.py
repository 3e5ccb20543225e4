"""FFCV files of the images where they exist or a run writes them, otherwise the images, by one of the other loaders."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.choices import Chosen, LoaderConfig
from launcher.config.fields import STRICT, AnyPath, Count
from launcher.data.ffcv.values import FFCVFiles
from launcher.errors import UserError

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig

_FILES, _IMAGES = "ffcv", "torchvision"
_KEYS_OF_FILES = ("train", "val", "os_cache", "write_missing", "files")
_DECODES = {"whole": _FILES, "crop": _FILES, "cpu": _IMAGES, "gpu": _IMAGES}


@dataclass(frozen=True, config=STRICT)
class AutoLoader(LoaderConfig):
    """Values of both loaders; those that are set are the values of the one that takes its place."""

    name: Literal["auto"]
    workers: Annotated[int, Field(ge=0)] | Literal["auto"]
    prefetch: Count
    shuffle_buffer: Count
    decoder: Literal["auto", "simplejpeg", "opencv", "torchvision", "pillow", "ffcv"]
    decode: Literal["whole", "crop", "cpu", "gpu"] | None
    dct_scaling: bool
    folder: AnyPath | None
    train: AnyPath | None
    val: AnyPath | None
    os_cache: bool | Literal["auto"]
    write_missing: bool
    files: FFCVFiles

    def choose(self, typed: Collection[str], config_with: Callable[[str], RunConfig]) -> Chosen:
        """Choose the files of `train prepare` if they are of the images of today; a new run may write missing ones."""
        if option := self._only(typed):
            return Chosen(option)
        from launcher.data.ffcv.dataset import FFCVDataset  # note: every command reads the values in this file

        with suppress(UserError):
            config = config_with(_FILES)
            files = FFCVDataset.of(config)
            if not files.may_be_written():
                return Chosen(_IMAGES if self.folder is None else _FILES)
            if not files.are_written():
                if self.folder is None and (elsewhere := _elsewhere(config)):
                    return elsewhere
                none = f"no FFCV files in {self.folder}, so the images are read unless this run writes files"
                return Chosen(_IMAGES, none if self.folder else None, _FILES)
            folder = files.path("train").parent
            from launcher.data.ffcv.inspection import are_of_images

            if are_of_images(config):
                return Chosen(
                    _FILES, f"reading the FFCV files in {folder}; dataloader={_IMAGES} reads the images instead"
                )
            other = f"{folder} has other images or rotations; remove it to run train prepare"
            return Chosen(_IMAGES, other, _FILES if self.folder else None)
        return Chosen(_IMAGES if self.folder is None else _FILES)

    def _only(self, typed: Collection[str]) -> str | None:
        """Return the loader that alone has the keys that are set, or accepts their values."""
        if self.decode is not None:
            return _DECODES[self.decode]
        if self.decoder == "ffcv" or any(key in typed for key in _KEYS_OF_FILES):
            return _FILES
        return _IMAGES if "shuffle_buffer" in typed or self.workers == 0 else None


def _elsewhere(config: RunConfig) -> Chosen | None:
    """Choose the files that a run has written where it could not write them beside the images; None without any."""
    from launcher.data.ffcv.dataset import FFCVDataset
    from launcher.data.ffcv.inspection import are_of_images
    from launcher.data.ffcv.places import Node, places

    for one in places(config, Node.here()):
        files = FFCVDataset.of(one)
        if files.are_written() and are_of_images(one):
            folder, again = files.loader.folder, files.loader.write_missing
            note = f"reading the FFCV files in {folder}; dataloader={_IMAGES} reads the images instead"
            return Chosen(_FILES, note, values={"folder": folder, "write_missing": again})
    return None
