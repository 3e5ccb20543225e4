"""Decoders of images with masks: one box cuts both, and masks keep their values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from launcher.config.fields import edges, in_ratio
from launcher.data.crops import Crops, centre_cut, cut, resize_by_torch, resize_to_nearest
from launcher.data.decode import UnreadableImage
from launcher.data.images import Draws, Pixels, evaluation_input, fill_of
from launcher.data.index import Piece
from launcher.data.masks.inspection import mismatch
from launcher.data.masks.values import IGNORED, Masks
from launcher.data.pixel_types import PixelType
from launcher.data.records import Record, Records
from launcher.data.sources.reading import read

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig
    from launcher.data.batch import Moment


class MaskRecords(Records):
    """Images with the bytes of their masks."""

    def record(self, number: int) -> Record:
        assert self.folder.masks is not None
        mask = self.folder.masks[number]
        return {"image": read(self.piece(number)), "mask": read(Piece(mask, mask))}


class PairDecoder(Pixels):
    """Decodes images and masks of the same size."""

    def __init__(self, config: RunConfig):
        super().__init__(PixelType.of(config.dataset), upright=config.dataset.exif_orientation)
        self.image, self.seed = config.image, config.seed
        self.size, self.fill = config.task.full_size(config), fill_of(config.dataset, config.image.fit)
        self.mask_fill = None if self.fill is None else [IGNORED]
        self.masks = Masks.of(config.task, config.dataset.classes, upright=self.upright)  # type: ignore[arg-type]

    def pair(self, record: Record) -> tuple[np.ndarray, np.ndarray]:
        """Return image and mask, [H, W, C] and uint8 [H, W, 1]; raises UnreadableImage if their sizes differ."""
        pixels, mask = self.whole(record["image"]), self.masks.read(record["mask"])
        if reason := mismatch(pixels.shape, mask):
            raise UnreadableImage(reason)
        return pixels, mask[..., None]


class RandomPairs(PairDecoder):
    """Random resized crops with flips, drawn as those of images alone."""

    def draws(self, moment: Moment, indices: np.ndarray) -> list[Draws]:
        crops = Crops(self.image, self.seed, moment.epoch, indices)
        return [Draws(partial(crops.box, place), index, moment) for place, index in enumerate(indices.tolist())]

    def decode(self, record: Record, view: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        pixels, mask = self.pair(record)
        box, size = draws.box_of(*pixels.shape[:2]), in_ratio(view, self.size)
        image = cut(pixels, box, size, self.image.interpolation, resize_by_torch, self.fill)
        return image, cut(mask, box, size, "", resize_to_nearest, self.mask_fill)[..., 0]


class CentrePairs(PairDecoder):
    """Centre crops, or whole images, equal in all epochs."""

    def __init__(self, config: RunConfig):
        super().__init__(config)
        values: dict[str, Any] = evaluation_input(config)
        self.short, self.interpolation, self.size = values["resize"], values["interpolation"], edges(values["size"])

    def decode(self, record: Record, view: int, draws: Any) -> tuple[np.ndarray, np.ndarray]:
        (pixels, mask), size = self.pair(record), in_ratio(view, self.size)
        image = centre_cut(pixels, self.short, size, self.interpolation, resize_by_torch, self.fill)
        return image, centre_cut(mask, self.short, size, "", resize_to_nearest, self.mask_fill)[..., 0]
