"""Load the trained network of this folder in any program; needs torch, torchvision, safetensors, and timm if used.

from model import CLASSES, load, predict, transform
network = load()                                          # in evaluation mode
logits = predict(network, transform(Image.open("image.jpg"))[None])

python model.py image.jpg                               # prints its likeliest classes, or numbers
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from launcher.weights.standalone import converted, main, prepare
from launcher.weights.standalone_card import CARD
from launcher.weights.standalone_network import load


def transform(image: Image.Image | np.ndarray) -> Tensor:
    """Return an image, or an array [H, W, C] if it is no 8-bit RGB, as the network's input, float32 [C, size, size]."""
    return torch.from_numpy(prepare(image))


@torch.inference_mode()
def predict(network: nn.Module, images: Tensor | np.ndarray) -> Tensor:
    """Return logits [B, classes, ...] or numbers [B, K] of images [B, C, H, W], with mirror images as the run."""
    images = torch.as_tensor(images)
    logits: Tensor = network(images)
    if CARD["flip_average"]:
        mirrored = network(images.flip(3))
        # note: those of pixels are mirrored too
        logits = (logits + (mirrored.flip(3) if mirrored.ndim == 4 else mirrored)) / 2
    is_converted = {"scale", "temperature"} & CARD.get("task", {}).keys()
    return torch.from_numpy(converted(logits.cpu().numpy())) if is_converted else logits


if __name__ == "__main__":
    network = load()
    main(lambda images: predict(network, images).numpy())
