"""The trained network of this folder, for any program; needs torch, torchvision, safetensors, and timm for its models.

from model import CLASSES, load, predict, transform
network = load()                                          # in evaluation mode
logits = predict(network, transform(Image.open("image.jpg"))[None])

python model.py image.jpg                               # its likeliest classes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: F401  # note: for surgeries
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models import resnet as resnet  # note: for surgeries

from launcher.weights.standalone import CARD, CLASSES, FOLDER, main, prepare

# The network, where it is no library's.
NETWORK: Callable[..., nn.Module] | None = None

# What training changed of the library's network, in this order.
SURGERY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}


def load() -> nn.Module:
    """The network in evaluation mode, float32 on the CPU.

    Raises:
        ValueError: the weights are of a network that was changed in another way.
    """
    path = FOLDER / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        surgery = json.loads(file.metadata()["surgery"])
    if surgery != {name: values for name, (_, values) in SURGERY.items()}:
        raise ValueError(f"model.safetensors needs another model.py, for {surgery}")
    network = _plain()
    for change, values in SURGERY.values():
        change(network, **values)
    # note: the names are the library's only where its plain network computes the same
    prefix = "+".join(SURGERY) + "." if SURGERY else ""
    network.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in load_file(path).items()})
    return network.eval()


def _plain() -> nn.Module:
    """The network before training changed it, with weights still to be loaded."""
    if NETWORK is not None:
        return NETWORK(len(CLASSES), **CARD["arguments"])
    if CARD["library"] == "timm":
        import timm

        return timm.create_model(CARD["architecture"], num_classes=len(CLASSES), **CARD["arguments"])
    # note: all weights are loaded, so none are drawn
    with torch.device("meta"):
        network: nn.Module = get_model(CARD["architecture"], weights=None, num_classes=len(CLASSES))
    return network.to_empty(device="cpu")


def transform(image: Image.Image) -> Tensor:
    """An image as the network's input, float32 [3, side, side]."""
    return torch.from_numpy(prepare(image))


@torch.inference_mode()
def predict(network: nn.Module, images: Tensor | np.ndarray) -> Tensor:
    """Logits [B, classes] of images [B, 3, H, W] as they were evaluated: with their mirror images, if that was so."""
    images = torch.as_tensor(images)
    logits: Tensor = network(images)
    return (logits + network(images.flip(3))) / 2 if CARD["flip_average"] else logits


if __name__ == "__main__":
    network = load()
    main(lambda images: predict(network, images).numpy())
