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

from launcher.weights.standalone import averaged, converted, main, prepare, views
from launcher.weights.standalone_network import load


def transform(image: Image.Image | np.ndarray) -> Tensor:
    """Return an image, or an array [H, W, C] if it is no 8-bit RGB, as the network's input, float32 [C, size, size]."""
    return torch.from_numpy(prepare(image))


@torch.inference_mode()
def predict(network: nn.Module, images: Tensor | np.ndarray) -> Tensor:
    """Return logits [B, classes, ...] or numbers [B, K] of images [B, C, H, W], averaged over views as the run."""
    images = torch.as_tensor(images)
    device = images.device
    outputs = [network(torch.from_numpy(view).to(device)).cpu().numpy() for view in views(images.cpu().numpy())]
    return torch.from_numpy(converted(averaged(outputs))).to(device)


if __name__ == "__main__":
    network = load()
    main(lambda images: predict(network, images).numpy())
