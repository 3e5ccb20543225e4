"""Load the trained network of this folder in any program; needs onnxruntime, NumPy and Pillow.

from model import CLASSES, load, predict, transform
network = load()
logits = predict(network, transform(Image.open("image.jpg"))[None])

python model.py image.jpg                               # prints its likeliest classes, or numbers
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from launcher.weights.standalone import converted, main, prepare
from launcher.weights.standalone_card import CARD, FOLDER

transform = prepare


def load() -> Any:
    """Return the network as an onnxruntime session on the CPU."""
    return onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])


def predict(network: Any, images: np.ndarray) -> np.ndarray:
    """Return logits [B, classes, ...] or numbers [B, K] of images [B, C, H, W], with mirror images as the run."""
    logits: np.ndarray = network.run(["logits"], {"images": images})[0]
    if CARD["flip_average"]:
        mirrored = network.run(["logits"], {"images": images[..., ::-1]})[0]
        # note: those of pixels are mirrored too
        logits = (logits + (mirrored[..., ::-1] if mirrored.ndim == 4 else mirrored)) / 2
    return converted(logits)


if __name__ == "__main__":
    network = load()
    main(lambda images: predict(network, images))
