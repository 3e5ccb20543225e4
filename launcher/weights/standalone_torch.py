"""Load the trained network of this folder in any program; needs torch, torchvision, safetensors, and timm if used.

from model import CLASSES, load, predict, transform
network = load()                                          # in evaluation mode
logits = predict(network, transform(Image.open("image.jpg"))[None])

python model.py image.jpg                               # prints its likeliest classes, or numbers
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

from launcher.weights.standalone import CARD, CLASSES, FOLDER, in_unit, main, prepare

# The network if it is not from a library.
NETWORK: Callable[..., nn.Module] | None = None

# The changes that training made to the library's network, in this order.
SURGERY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}


def load() -> nn.Module:
    """Return the network in evaluation mode, float32 on the CPU.

    Raises ValueError if the weights belong to a network with other changes.
    """
    path = FOLDER / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        surgery = json.loads(file.metadata()["surgery"])
    if surgery != {name: values for name, (_, values) in SURGERY.items()}:
        raise ValueError(f"model.safetensors needs another model.py, for {surgery}")
    network = _plain()
    for change, values in SURGERY.values():
        change(network, **values)
    # note: names have no prefix if the library's plain network computes the same
    prefix = "+".join(SURGERY) + "." if SURGERY else ""
    network.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in load_file(path).items()})
    return network.eval()


def _plain() -> nn.Module:
    """Return the network before the changes of training, without weights."""
    if NETWORK is not None:
        return NETWORK(len(CLASSES), **CARD["arguments"])
    if CARD["library"] == "timm":
        import timm

        return timm.create_model(CARD["architecture"], num_classes=len(CLASSES), **CARD["arguments"])
    # note: no initialization, as all weights are loaded
    with torch.device("meta"):
        network: nn.Module = get_model(CARD["architecture"], weights=None, num_classes=len(CLASSES))
    return network.to_empty(device="cpu")


def transform(image: Image.Image) -> Tensor:
    """Return an image as the network's input, float32 [3, size, size]."""
    return torch.from_numpy(prepare(image))


@torch.inference_mode()
def predict(network: nn.Module, images: Tensor | np.ndarray) -> Tensor:
    """Return logits [B, classes] or numbers [B, K] of images [B, 3, H, W], also of mirror images if the run did so."""
    images = torch.as_tensor(images)
    logits: Tensor = network(images)
    logits = (logits + network(images.flip(3))) / 2 if CARD["flip_average"] else logits
    return torch.from_numpy(in_unit(logits.cpu().numpy())) if "scale" in CARD.get("task", {}) else logits


if __name__ == "__main__":
    network = load()
    main(lambda images: predict(network, images).numpy())
