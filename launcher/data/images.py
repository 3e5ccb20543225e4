"""Data sets of decoded and cropped images, one sample at a time, as loader workers read them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from launcher.config import schema
from launcher.data.batch import Loaded
from launcher.data.crops import Box, Crops, centre_cut, cut, resize_by_pillow, resize_by_torch
from launcher.data.decode import UnreadableImage, decode
from launcher.data.device_jpeg import Jpeg, is_for_device
from launcher.data.folder import Folder
from launcher.data.jpeg import decode_part, decoder_of, fewest_eighths, plain_frame
from launcher.data.sampling import Request
from launcher.data.sources.pieces import Piece, Remote, read_remote
from launcher.data.workers import Reading
from launcher.disk import DiskError
from launcher.errors import UserError
from launcher.plan.plan import Plan

# The label of an image that cannot be read.
UNREADABLE = -1

# (uint8 pixels [H, W, 3], sample index, epoch) -> the same as augmented
ChangeImage = Callable[[np.ndarray, int, int], np.ndarray]


class Reader(ABC):
    """Reads the images of one split, with `labels` of the task; `classes` are the names of their values, if available.

    labels: classes int64 [samples], or rows [samples, K]: uint8 for several classes, float32 for numbers.
    """

    labels: np.ndarray
    classes: list[str] | None = None
    # of each image, if archives are read through copies
    archives: np.ndarray | None = None

    @property
    def samples(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        """Names of classes or numbers; those of classes without one are their positions."""
        return self.classes or [*map(str, range(self.labels.max() + 1))]

    @abstractmethod
    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        """Yield uint8 images [B, 3, H, W], their labels and int64 sample indices [B] on the CPU, in order."""

    def piece(self, index: int) -> Piece | None:
        """Return where the image of a sample is; None for those of FFCV files."""
        return None

    def name(self, index: int) -> str:
        """Return the name of a sample's image."""
        return piece.name if (piece := self.piece(index)) else f"image {index}"

    def measure(self, index: int) -> tuple[int, int, int]:
        """Return width, height and bytes of a sample's image.

        Raises UnreadableImage if it cannot be decoded.
        """
        raise NotImplementedError

    def is_readable(self, index: int) -> bool:
        """Return whether a sample's image can be decoded."""
        with suppress(UnreadableImage):
            return bool(self.measure(index))
        return False

    def stalled(self, seconds: float) -> Path | str | None:
        """Return a file whose read has taken more than `seconds`."""
        return None

    def close(self) -> None:
        """End all worker processes and threads."""
        return


def _decoded(
    data: bytes,
    box_of: Callable[[int, int], Box],
    size: int | None,
    decoder: str,
    *,
    upright: bool,
    on_device: bool,
) -> tuple[np.ndarray | bytes, Box]:
    """Decode at least a box of an image, as `Images.part` does; Pillow decodes all but plain JPEGs.

    With `on_device`, a JPEG that the device decodes is returned as it is.

    Raises UnreadableImage if it is no image.
    """
    with suppress(ValueError):
        if frame := plain_frame(data, upright=upright):
            box = box_of(frame.height, frame.width)
            if on_device and is_for_device(data, frame):
                return data, box
            eighths = fewest_eighths(box[2], box[3], size) if size else 8
            return decode_part(data, frame, box, eighths, decoder_of(decoder))
    pixels = np.array(decode(data, upright=upright).image)
    return pixels, box_of(*pixels.shape[:2])


# epoch, sample index, size in pixels
Key = tuple[int, int, int]
# uint8 pixels [H, W, 3] or what the device decodes, label, sample index
Sample = tuple[np.ndarray | Jpeg, Any, int]


class Images(Dataset[Sample]):
    """Decoded images of a split by `Key`, with labels."""

    decoder = "auto"
    # whether JPEGs are left to the device
    on_device = False

    def __init__(self, folder: Folder, *, upright: bool):
        # note: worker processes share one array of bytes without copying it, unlike a list of strings
        files: Any = np.array([os.fsencode(file) for file in folder.files])
        self.folder, self.labels, self.upright = replace(folder, files=files), folder.labels, upright
        self.reading = Reading(1)
        self._fetched: dict[int, bytes | UnreadableImage] = {}

    def __getitems__(self, keys: Sequence[Key]) -> list[Sample] | UserError | DiskError:
        """Return the images of a batch, or the error: DataLoader would add a traceback to a raised one."""
        try:
            if isinstance(self.folder.stored, Remote):
                self._fetch([index % len(self.labels) for _, index, _ in keys])
            return self.batch(keys)
        except (UserError, DiskError) as error:
            return error

    def _fetch(self, numbers: Sequence[int]) -> None:
        """Read the files of a batch from a bucket, all at once."""
        worker = get_worker_info()
        with self.reading.image(numbers[0], worker.id if worker else 0):
            contents = read_remote([self.piece(number) for number in numbers])
        self._fetched = dict(zip(numbers, contents, strict=True))

    def batch(self, keys: Sequence[Key]) -> list[Sample]:
        """Return the images of a batch, of one epoch and size; raises as `open`."""
        return [self[key] for key in keys]

    def open(self, index: int) -> np.ndarray:
        """Decode one image as RGB uint8 [H, W, 3].

        Raises UserError if the file is missing or not an image.
        """
        return self.part(index, lambda height, width: (0, 0, height, width, 0))[0]

    def part(self, index: int, box_of: Callable[[int, int], Box], size: int | None = None) -> tuple[np.ndarray, Box]:
        """Decode at least a box of an image, given its height and width; return RGB uint8 [H, W, 3], and the box there.

        `size` allows a smaller scale at which the box still has this many pixels.

        Raises UserError if the file is missing or not an image.
        """
        image, box = self._part(index, box_of, size, on_device=False)
        assert isinstance(image, np.ndarray)
        return image, box

    def _part(
        self, index: int, box_of: Callable[[int, int], Box], size: int | None, *, on_device: bool
    ) -> tuple[np.ndarray | bytes, Box]:
        worker = get_worker_info()
        decoded = partial(_decoded, decoder=self.decoder, upright=self.upright, on_device=on_device)
        try:
            with self.reading.image(index, worker.id if worker else 0):
                return decoded(self._content(index), box_of, size)
        except UnreadableImage as reason:
            message = f"{self.piece(index)} cannot be read as an image ({reason}); repair or remove it"
            more = "train doctor lists all such files; dataset.skip_bad=true skips them in a new run"
            raise UserError(f"{message} ({more})") from None

    def _content(self, index: int) -> bytes:
        content = self._fetched.get(index)
        if isinstance(content, UnreadableImage):
            raise content
        return self.piece(index).read() if content is None else content

    def piece(self, index: int) -> Piece:
        """Return where the image of a sample is."""
        return self.folder.piece(index % len(self.labels))


class TrainImages(Images):
    """Random resized crops, flipped; a sample index modulo the number of files is its file."""

    def __init__(
        self,
        folder: Folder,
        image: schema.Image,
        loader: schema.TorchvisionLoader,
        *,
        seed: int,
        upright: bool,
        change_image: ChangeImage | None,
    ):
        super().__init__(folder, upright=upright)
        self.image, self.seed, self.change_image = image, seed, change_image
        self.decoder, self.scaled, self.on_device = loader.decoder, loader.dct_scaling, loader.decode == "gpu"
        # note: Pillow-SIMD, where it is installed, resizes too
        self.resize = resize_by_pillow if self.decoder == "pillow" else resize_by_torch

    def batch(self, keys: Sequence[Key]) -> list[Sample]:
        epoch, _, size = keys[0]
        # note: one draw for all, which takes as long as for one
        crops = Crops(self.image, self.seed, epoch, np.array([index for _, index, _ in keys]))
        return [self._crop(index, partial(crops.box, place), epoch, size) for place, (_, index, _) in enumerate(keys)]

    def _crop(self, index: int, box_of: Callable[[int, int], Box], epoch: int, size: int) -> Sample:
        number = index % len(self.labels)
        image, box = self._part(number, box_of, size if self.scaled else None, on_device=self.on_device)
        if isinstance(image, bytes):
            return Jpeg(image, box, size), self.labels[number], index
        pixels = cut(image, box, size, self.image.interpolation, self.resize)
        if self.change_image is not None:
            pixels = self.change_image(pixels, index, epoch)
        return pixels, self.labels[number], index

    def on_cpu(self, index: int, box: Box, size: int) -> np.ndarray:
        """Decode a crop that the device could not; raises as `open`."""
        image, box = self.part(index % len(self.labels), lambda *_: box)
        return cut(image, box, size, self.image.interpolation, self.resize)


class EvalImages(Images):
    """Centre crops of the resized images, equal in all epochs; `values` are those of a model card's `input`."""

    def __init__(self, folder: Folder, values: Mapping[str, Any]):
        super().__init__(folder, upright=values["exif_orientation"])
        self.resize, self.interpolation = values["resize"], values["interpolation"]

    def __getitem__(self, key: Key) -> Sample:
        _, index, size = key
        pixels = centre_cut(self.open(index), self.resize, size, self.interpolation)
        return pixels, self.labels[index], index


class ReadableImages(EvalImages):
    """As EvalImages, but an unreadable image is black and its label is UNREADABLE."""

    def __getitem__(self, key: Key) -> Sample:
        _, index, size = key
        try:
            return super().__getitem__(key)
        except UserError:
            return np.zeros((size, size, 3), np.uint8), np.int64(UNREADABLE), index


def evaluation_input(plan: Plan) -> dict[str, Any]:
    """Return how a run's evaluation prepares images, as the `input` of a model card."""
    image, dataset = plan.config.image, plan.config.dataset
    return {
        "resize": plan.config.scaled_size(image.eval_resize),
        "size": plan.evaluation_view,
        "interpolation": image.eval_interpolation,
        "exif_orientation": dataset.exif_orientation,
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }
