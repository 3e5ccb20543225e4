"""Folders of random images, and an image that is none."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def write_images(
    root: Path,
    counts: Mapping[str, int],
    classes: Sequence[str] = ("cat", "dog"),
    size: tuple[int, int] | None = None,
    kind: str = "jpg",
) -> Path:
    """Write `counts` images per split and class to `root/SPLIT/CLASS`, of height and width `size` or of 20 to 60 px."""
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (*(size or random.integers(20, 60, 2)), 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.{kind}")
    return root


def random_image(height: int = 40, width: int = 50, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG that claims a size, whatever it holds."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_arrays(root: Path, dtype: str, channels: int, size: int = 24) -> dict[str, np.ndarray]:
    """Write four and two arrays [size, size, channels] of two classes, one brighter, by SPLIT/CLASS/NUMBER."""
    random, arrays = np.random.default_rng(1), dict[str, np.ndarray]()
    largest = {"uint8": 255, "uint16": 65535, "float32": 4.0}[dtype]
    for split, count in {"train": 4, "val": 2}.items():
        for label, name in enumerate(("cat", "dog")):
            for number in range(count):
                pixels = (random.random((size, size, channels)) * (0.3 + 0.6 * label) * largest).astype(dtype)
                path = root / split / name / f"{number}.npy"
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, pixels)
                arrays[f"{split}/{name}/{number}"] = pixels
    return arrays
