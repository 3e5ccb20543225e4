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

from launcher.weights.standalone import averaged, converted, main, prepare, views
from launcher.weights.standalone_card import FOLDER

transform = prepare


def load() -> Any:
    """Return the network as an onnxruntime session on the CPU."""
    return onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])


def predict(network: Any, images: np.ndarray) -> np.ndarray:
    """Return logits [B, classes, ...] or numbers [B, K] of images [B, C, H, W], averaged over views as the run."""
    return converted(averaged([network.run(["logits"], {"images": view})[0] for view in views(images)]))


if __name__ == "__main__":
    network = load()
    main(lambda images: predict(network, images))
