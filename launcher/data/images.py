"""Readers of splits, and the decoders of images: crops and flips, as loader workers make them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from launcher.config.fields import edges, in_ratio, size_value
from launcher.config.schema import Dataset, RunConfig
from launcher.data.batch import Loaded, Moment
from launcher.data.crops import Box, Crops, Fill, Resize, centre_cut, cut, resize_by_torch, resize_of
from launcher.data.decode import UnreadableImage
from launcher.data.index import Piece
from launcher.data.jpeg import decode_part, decoder_of, fewest_eighths, plain_frame
from launcher.data.loaders.base import DecodingLoader
from launcher.data.pixel_types import RGB, PixelType
from launcher.data.records import Decoder, Record, Records, Sample
from launcher.data.sampling import Request
from launcher.errors import UserError
from launcher.plugins import Complete

# The label of an image that cannot be read.
UNREADABLE = -1

# (pixels [H, W, C], sample index, moment of its step) -> the same as augmented
ChangeImage = Callable[[np.ndarray, int, Moment], np.ndarray]
# (height, width) of an image -> the box that its sample cuts
BoxOf = Callable[[int, int], Box]


@dataclass(frozen=True)
class Draws:
    """What a training sample of an image draws: its box; algorithms draw by its index and moment."""

    box_of: BoxOf
    index: int
    moment: Moment


class Reader(Complete, ABC):
    """Reads the images of one split, with `labels` of the task; `classes` are the names of their values, if available.

    labels: classes int64 [samples], or rows [samples, K]: uint8 for several classes, float32 for numbers.
    facts: those of the task that the data has. place: the prefix of the names within the data set's folder.
    """

    labels: np.ndarray
    facts: Mapping[str, Any] = MappingProxyType({})
    classes: list[str] | None = None
    place: str = ""
    # that of each image, and how many images are shuffled, if archives are read through copies
    archives: tuple[np.ndarray, int] | None = None

    @property
    def samples(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        """Names of classes or numbers; those of classes without one are their positions."""
        return self.classes or [*map(str, range(self.labels.max() + 1))]

    @abstractmethod
    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        """Yield images [B, C, H, W], their labels and int64 sample indices [B] on the CPU, in order."""

    def piece(self, index: int) -> Piece | None:
        """Return where the image of a sample is; None for those of FFCV files."""
        return None

    def name(self, index: int) -> str:
        """Return the name of a sample's image."""
        return piece.name if (piece := self.piece(index)) else f"image {index}"

    def stalled(self, seconds: float) -> Path | str | None:
        """Return a file whose read has taken more than `seconds`."""
        return None

    def close(self) -> None:
        """End all worker processes and threads."""
        return


class ImageReader(Reader):
    """Reads images that can be measured one by one."""

    @abstractmethod
    def measure(self, index: int) -> tuple[int, int, int]:
        """Return width, height and bytes of a sample's image.

        Raises UnreadableImage if it cannot be decoded.
        """

    def is_readable(self, index: int) -> bool:
        """Return whether a sample's image can be decoded."""
        with suppress(UnreadableImage):
            return bool(self.measure(index))
        return False


class Pixels(Decoder):
    """Decodes images to pixels [H, W, C] of a type; `upright` applies their EXIF rotation.

    decoder: of plain JPEGs as RGB; Pillow decodes all others.
    """

    def __init__(self, pixel_type: PixelType = RGB, *, upright: bool, decoder: str = "auto"):
        self.pixel_type, self.upright, self.decoder = pixel_type, upright, decoder

    def decode(self, record: Record, view: int, draws: Any) -> tuple[Any, Any]:
        """Return a whole image of any size, and its label."""
        return self.whole(record["image"]), record["label"]

    def whole(self, data: bytes) -> np.ndarray:
        """Decode one image; raises UnreadableImage."""
        pixels, _ = self.part(data, lambda height, width: (0, 0, height, width, 0))
        return pixels

    def resize_of_type(self) -> Resize:
        """Return what resizes pixels of the type."""
        return resize_of(self.decoder) if self.pixel_type.is_rgb else resize_by_torch

    def part(self, data: bytes, box_of: BoxOf, size: tuple[int, ...] | None = None) -> tuple[np.ndarray, Box]:
        """Decode at least a box of an image, given its height and width; return the pixels and the box in them.

        `size` allows a smaller scale at which the box still has these pixels. Raises UnreadableImage.
        """
        with suppress(ValueError):
            if self.pixel_type.is_rgb and (frame := plain_frame(data, upright=self.upright)):
                box = box_of(frame.height, frame.width)
                eighths = fewest_eighths(box[2], box[3], size) if size else 8
                return decode_part(data, frame, box, eighths, decoder_of(self.decoder))
        pixels = self.pixel_type.read(data, upright=self.upright)
        return pixels, box_of(*pixels.shape[:2])


class RandomCrops(Pixels):
    """Random resized crops, flipped and changed by the algorithms that act on single images."""

    def __init__(self, config: RunConfig, change_image: ChangeImage | None = None):
        loader, upright = config.dataloader, config.dataset.exif_orientation
        assert isinstance(loader, DecodingLoader)
        pixel_type = PixelType.of(config.dataset)
        super().__init__(pixel_type, upright=upright, decoder=loader.decoder)
        self.image, self.seed = config.image, config.seed
        self.size, self.fill = config.task.full_size(config), fill_of(config.dataset, config.image.fit)
        self.scaled, self.change_image = loader.dct_scaling, change_image
        self.resize = self.resize_of_type()

    def draws(self, moment: Moment, indices: np.ndarray) -> list[Draws]:
        # note: one draw for all, which takes as long as for one
        crops = Crops(self.image, self.seed, moment.epoch, indices)
        return [Draws(partial(crops.box, place), index, moment) for place, index in enumerate(indices.tolist())]

    def decode(self, record: Record, view: int, draws: Draws) -> tuple[np.ndarray, Any]:
        pixels = self.crop(record["image"], draws.box_of, view, scaled=self.scaled)
        if self.change_image is not None:
            pixels = self.change_image(pixels, draws.index, draws.moment)
        return pixels, record["label"]

    def crop(self, data: bytes, box_of: BoxOf, view: int, *, scaled: bool = False) -> np.ndarray:
        """Decode, cut and resize a box of an image to the size of a view; raises UnreadableImage."""
        size = in_ratio(view, self.size)
        pixels, box = self.part(data, box_of, size if scaled else None)
        return cut(pixels, box, size, self.image.interpolation, self.resize, self.fill)


class CentreCrops(Pixels):
    """Centre crops of the resized images, or whole ones, equal in all epochs.

    values: those of a model card's `input`.

    decoder: of plain JPEGs; `pillow` also resizes.
    """

    def __init__(self, values: Mapping[str, Any], decoder: str = "auto"):
        super().__init__(pixel_type_of(values), upright=values["exif_orientation"], decoder=decoder)
        self.short, self.interpolation = values["resize"], values["interpolation"]
        self.size, self.fill = edges(values["size"]), values.get("fill")
        self.resize = self.resize_of_type()

    def decode(self, record: Record, view: int, draws: Any) -> tuple[np.ndarray, Any]:
        return self._prepared(self.whole(record["image"]), in_ratio(view, self.size)), record["label"]

    def of_array(self, image: np.ndarray) -> np.ndarray:
        """Return an image [H, W, C] that a program has decoded, at the size of the evaluation.

        Raises UserError if it is of another type.
        """
        return self._prepared(self.checked(image), self.size)

    def checked(self, image: np.ndarray) -> np.ndarray:
        """Return the pixels of an image [H, W, C] that a program has decoded; raises UserError for another type."""
        of_type, pixels = self.pixel_type, np.asarray(image)
        needed = f"pass [height, width, {of_type.channels}] of {of_type.dtype}"
        if pixels.ndim not in (2, 3) or not pixels.size:
            raise UserError(f"an array of shape {[*pixels.shape]} is no image; {needed}, in a list")
        try:
            return of_type.checked(pixels)
        except UnreadableImage as error:
            raise UserError(f"an array is no image of this model: {error}; {needed}") from None

    def _prepared(self, pixels: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
        return centre_cut(pixels, self.short, size, self.interpolation, self.resize, self.fill)


class ReadableImages(Records):
    """Images of which an unreadable one is black and its label is UNREADABLE."""

    decoder: CentreCrops

    def sample(self, index: int, view: int, draws: Any) -> Sample:
        try:
            return super().sample(index, view, draws)
        except UserError:
            of_type, size = self.decoder.pixel_type, in_ratio(view, self.decoder.size)
            return np.zeros((*size, of_type.channels), of_type.loaded), np.int64(UNREADABLE), index


def pixel_type_of(values: Mapping[str, Any]) -> PixelType:
    """Return the type of images by the `input` of a model card, where older ones have none."""
    return PixelType(values.get("channels", 3), values.get("dtype", "uint8"))


def fill_of(dataset: Dataset, fit: str) -> Fill:
    """Return the mean colour of loaded images, which is around those that `pad` keeps whole; None without it."""
    colour = [mean * dataset.largest for mean in dataset.normalization[0]] if fit == "pad" else None
    return [round(value) for value in colour] if colour and dataset.dtype != "float32" else colour


def evaluation_input(config: RunConfig) -> dict[str, Any]:
    """Return how a run's evaluation prepares images, as the `input` of a model card."""
    image, dataset = config.image, config.dataset
    return {
        "fit": image.fit,
        "resize": config.scaled_size(image.eval_resize) if image.fit == "crop" else None,
        "size": size_value(config.task.loaded_evaluation_size(config)),
        "fill": fill_of(dataset, image.fit),
        "interpolation": image.eval_interpolation,
        "exif_orientation": dataset.exif_orientation,
        "channels": dataset.channels,
        "dtype": dataset.dtype,
        "mean": dataset.mean,
        "std": dataset.std,
    }
