"""What every export's model.py holds, whatever computes its network; needs NumPy and Pillow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

FOLDER = Path(__file__).resolve().parent
CARD: dict[str, Any] = json.loads((FOLDER / "model_card.json").read_text(encoding="utf-8"))
CLASSES: list[str] = CARD["classes"]


def prepare(image: Image.Image) -> np.ndarray:
    """An image as the network's input, float32 [3, side, side]."""
    values = CARD["input"]
    if values["exif_orientation"]:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        # note: Pillow would cut 16 bits off above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    # note: of an image more than 50 times as long as wide the middle, as in training: the whole would take gigabytes
    width, height = (min(length, 50 * min(image.size)) for length in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    image = image.crop((left, top, left + width, top + height))
    short, side = values["resize"], values["size"]
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    resized = image.convert("RGB").resize(size, Image.Resampling[values["interpolation"].upper()])
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return normalize(np.asarray(resized.crop((left, top, left + side, top + side))).transpose(2, 0, 1))


def normalize(pixels: np.ndarray) -> np.ndarray:
    """Pixels uint8 [..., 3, H, W] with the mean and deviation that the network expects, float32."""
    mean, std = (np.array(CARD["input"][name], np.float32)[:, None, None] for name in ("mean", "std"))
    return (pixels.astype(np.float32) / 255 - mean) / std


def main(logits_of: Callable[[np.ndarray], np.ndarray]) -> None:
    """Print the likeliest classes of the image files that the command line names."""
    if not sys.argv[1:]:
        sys.exit("usage: python model.py IMAGE ...")
    for path in sys.argv[1:]:
        try:
            with Image.open(path) as file:
                image = prepare(file)
        except OSError as error:
            sys.exit(f"{path} cannot be read: {error}")
        logits = logits_of(image[None])[0].astype(np.float64)
        raised = np.exp(logits - logits.max())
        scores = 1 / (1 + np.exp(-logits)) if CARD["scores"] == "sigmoid" else raised / raised.sum()
        print(path)
        for number in np.argsort(-scores, kind="stable")[:5]:
            print(f"{scores[number]:8.2%}  {CLASSES[number]}")
