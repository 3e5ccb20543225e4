"""The trained network of this folder, for any program; needs torch, torchvision, safetensors, and timm for its models.

from model import CLASSES, load, predict, transform
network = load()                                          # in evaluation mode
logits = predict(network, transform(Image.open("image.jpg"))[None])

python model.py image.jpg                               # its likeliest classes
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models import resnet as resnet  # note: for surgeries
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

FOLDER = Path(__file__).resolve().parent
CARD: dict[str, Any] = json.loads((FOLDER / "model_card.json").read_text(encoding="utf-8"))
CLASSES: list[str] = CARD["classes"]

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
    values = CARD["input"]
    if values["exif_orientation"]:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        # note: Pillow would cut 16 bits off above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    interpolation = InterpolationMode(values["interpolation"])
    # note: of an image more than 50 times as long as wide the middle, as in training: the whole would take gigabytes
    width, height = (min(length, 50 * min(image.size)) for length in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    image = image.crop((left, top, left + width, top + height))
    resized = transforms.resize(image.convert("RGB"), [values["resize"]], interpolation=interpolation)
    return normalize(transforms.pil_to_tensor(transforms.center_crop(resized, [values["size"]])))


def normalize(pixels: Tensor) -> Tensor:
    """Pixels uint8 [..., 3, H, W] as the network's input, float32."""
    images: Tensor = transforms.normalize(pixels.float() / 255, CARD["input"]["mean"], CARD["input"]["std"])
    return images


@torch.inference_mode()
def predict(network: nn.Module, images: Tensor) -> Tensor:
    """Logits [B, classes] of images [B, 3, H, W] as they were evaluated: with their mirror images, if that was so."""
    logits: Tensor = network(images)
    return (logits + network(images.flip(3))) / 2 if CARD["flip_average"] else logits


def main(paths: list[str]) -> None:
    """Print the likeliest classes of image files."""
    if not paths:
        sys.exit("usage: python model.py IMAGE ...")
    network = load()
    for path in paths:
        try:
            with Image.open(path) as file:
                image = transform(file)
        except OSError as error:
            sys.exit(f"{path} cannot be read: {error}")
        logits = predict(network, image[None])[0]
        scores = logits.sigmoid() if CARD["scores"] == "sigmoid" else F.softmax(logits, dim=0)
        best = scores.topk(min(5, len(CLASSES)))
        print(path)
        for score, number in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            print(f"{score:8.2%}  {CLASSES[number]}")


if __name__ == "__main__":
    main(sys.argv[1:])
