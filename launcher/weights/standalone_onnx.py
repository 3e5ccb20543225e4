"""The network of an ONNX file, for any program; needs onnxruntime, NumPy and Pillow.

The file carries these lines as `use` beside the values that they read: python use.py model.onnx IMAGE ...
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def load(path: str) -> tuple[Any, dict[str, Any]]:
    """Return the network, and the metadata of its file: `classes`, `input` and more."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    card = session.get_modelmeta().custom_metadata_map
    return session, {name: json.loads(value) for name, value in card.items()}


def transform(image: Image.Image, card: dict[str, Any]) -> np.ndarray:
    """An image as one of the network's `images`, float32 [3, side, side]."""
    values = card["input"]
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
    return normalize(np.asarray(resized.crop((left, top, left + side, top + side))).transpose(2, 0, 1), card)


def normalize(pixels: np.ndarray, card: dict[str, Any]) -> np.ndarray:
    """Pixels uint8 [..., 3, H, W] with the mean and deviation that the network expects, float32."""
    mean, std = (np.array(card["input"][name], np.float32)[:, None, None] for name in ("mean", "std"))
    return (np.float32(1 / 255) * pixels - mean) / std


def predict(session: Any, images: np.ndarray) -> np.ndarray:
    """Logits [B, classes] of images float32 [B, 3, side, side]."""
    logits: np.ndarray = session.run(["logits"], {"images": images})[0]
    return logits


def main(path: str, *files: str) -> None:
    """Print the likeliest classes of image files."""
    session, card = load(path)
    for file in files:
        with Image.open(file) as image:
            logits = predict(session, transform(image, card)[None])[0].astype(np.float64)
        raised = np.exp(logits - logits.max())
        scores = 1 / (1 + np.exp(-logits)) if card["scores"] == "sigmoid" else raised / raised.sum()
        print(file)
        for number in np.argsort(-scores, kind="stable")[:5]:
            print(f"{scores[number]:8.2%}  {card['classes'][number]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
