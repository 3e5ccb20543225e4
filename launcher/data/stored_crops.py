"""A file of random crops of all training images, with a teacher's probabilities of each; imports no torch.

The first line describes the file in JSON. One row an image follows, which ranks and workers map into memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from launcher import randomness
from launcher.config.schema import RunConfig
from launcher.data.crops import Box, BoxSource, Crops
from launcher.data.loaders.base import loader_of
from launcher.data.split import Split
from launcher.errors import Problem, UserError

_ALIGNMENT = 64
# Edges of crops are stored as parts of the image's: exact for images with fewer pixels along an edge.
PARTS = 65_535


@dataclass(frozen=True)
class Described:
    """What the rows of a file are of.

    images: the fingerprint of the training images. classes: their names, or numbers. crops, top: how many crops an
    image has, and how many classes of each have a probability. seed: that of the crops. view: the size of the images
    that the teacher had, in pixels. image: the values of a config that determine the crops, by key.
    """

    images: str
    samples: int
    classes: list[str]
    crops: int
    top: int
    seed: int
    view: int
    teacher: str
    teacher_sha256: str
    image: Mapping[str, Any]

    @property
    def row(self) -> np.dtype[Any]:
        """The type of an image's row: a box is the parts of top, left, bottom and right."""
        number = np.min_scalar_type(len(self.classes) - 1).newbyteorder("<")
        return np.dtype(
            [
                ("box", "<u2", (self.crops, 4)),
                ("mirrored", "u1", (self.crops,)),
                ("classes", number, (self.crops, self.top)),
                ("probabilities", "<f2", (self.crops, self.top)),
            ]
        )

    def line(self) -> bytes:
        """Return the first line of the file, padded so that rows are aligned."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        return text + b" " * (-(len(text) + 1) % _ALIGNMENT) + b"\n"


def crop_values(config: RunConfig) -> dict[str, Any]:
    """Return the values of a config that determine the crops of an image, by key."""
    image = config.image
    return {
        "image.scale": image.scale,
        "image.ratio": image.ratio,
        "image.flip": image.flip,
        "image.interpolation": image.interpolation,
        "dataset.exif_orientation": config.dataset.exif_orientation,
    }


def parts_of(box: Box, height: int, width: int) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right of a box as parts of the edges of its image."""
    top, left, box_height, box_width, _ = box
    edges = ((top, height), (left, width), (top + box_height, height), (left + box_width, width))
    first, second, third, fourth = (round(place * PARTS / edge) for place, edge in edges)
    return first, second, third, fourth


def box_of(parts: np.ndarray, mirrored: int, height: int, width: int) -> Box:
    """Return the box of stored parts [4] in an image of any size; it has at least one pixel."""
    top, left, bottom, right = (
        round(part * edge / PARTS) for part, edge in zip(parts.tolist(), (height, width) * 2, strict=True)
    )
    top, left = min(top, height - 1), min(left, width - 1)
    return top, left, max(1, bottom - top), max(1, right - left), int(mirrored)


class LabelsFile:
    """An open file. Sample index i + r * N, of image i, takes the r-th crop after one that is drawn for its epoch."""

    def __init__(self, path: str):
        """Raises UserError if the file is missing, incomplete or another one."""
        again = "set a file of train relabel"
        try:
            with Path(path).open("rb") as file:
                self.described = Described(**json.loads(file.readline()))
                start, size = file.tell(), file.seek(0, 2)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); {again}") from None
        except (ValueError, TypeError):
            raise UserError(f"{path} has no stored labels; {again}") from None
        row, samples = self.described.row, self.described.samples
        if size != start + samples * row.itemsize:
            raise UserError(f"{path} is incomplete or damaged; remove it and write it again by train relabel")
        self._rows: np.ndarray = np.memmap(path, row, "r", start, (samples,))

    def _places(self, seed: int, epoch: int, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return image and crop of each sample, int64 [B]."""
        images, repeats = indices % self.described.samples, indices // self.described.samples
        draws = randomness.uniforms(seed, "stored crop", epoch, images, 1)[:, 0]
        return images, (np.floor(draws * self.described.crops).astype(np.int64) + repeats) % self.described.crops

    def crops(self, seed: int, epoch: int, indices: np.ndarray) -> _Crops:
        """Return the crops of samples in an epoch."""
        places = self._places(seed, epoch, indices)
        return _Crops(self._rows["box"][places], self._rows["mirrored"][places])

    def labels(self, seed: int, epoch: int, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the likeliest classes of the same crops, int64 [B, top], and their probabilities, float32."""
        places = self._places(seed, epoch, indices)
        classes, probabilities = self._rows["classes"][places], self._rows["probabilities"][places]
        return classes.astype(np.int64), probabilities.astype(np.float32)


@dataclass(frozen=True)
class _Crops:
    """The stored crops of some samples: parts uint16 [B, 4], and whether they are mirrored [B]."""

    parts: np.ndarray
    mirrored: np.ndarray

    def box(self, number: int, height: int, width: int) -> Box:
        return box_of(self.parts[number], self.mirrored[number], height, width)


@lru_cache(maxsize=8)
def open_labels(path: str) -> LabelsFile:
    """Open a file once in a process; raises as `LabelsFile`."""
    return LabelsFile(path)


def crops_of(config: RunConfig) -> BoxSource:
    """Return what makes the crops of a run: random draws, or a file of them."""
    if (path := config.algorithms.crops_file) is None:
        return partial(Crops, config.image, config.seed)
    return partial(_stored, path, config.seed)


def check_images(config: RunConfig, images: Sequence[Split]) -> None:
    """Check that the file of crops of a run, if it has one, is of its training images, the first ones of `images`.

    Raises UserError if not.
    """
    open_labels.cache_clear()
    for name, values in config.algorithms.items():
        if (path := values.crops_file) is None:
            continue
        ours = loader_of(config).training_fingerprint(config, images)
        if ours is None:
            message = "cannot be compared with these files of images; set dataloader=torchvision"
        elif ours != open_labels(path).described.images:
            message = (
                f"is of other training images than {config.dataset.path or config.dataset.name}; set its data set, "
            )
            message += "or write a file of this one by train relabel"
        else:
            continue
        raise UserError(Problem(message, f"algorithms.{name}.path", path))


def _stored(path: str, seed: int, epoch: int, indices: np.ndarray) -> _Crops:
    return open_labels(path).crops(seed, epoch, indices)
