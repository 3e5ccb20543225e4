"""The part that model.py has in every export with torch: the network and its weights; needs torch and safetensors."""

from __future__ import annotations

import json
import math  # noqa: F401  # note: for networks
from collections.abc import Callable, Mapping  # noqa: F401  # note: for networks
from typing import Any

import torch
import torch.nn.functional as F  # noqa: F401  # note: for surgeries
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn  # noqa: F401  # note: for surgeries

from launcher.weights.standalone_card import CARD, FOLDER

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
        return NETWORK(CARD["outputs"], **CARD["arguments"])
    if CARD["library"] == "timm":
        import timm

        return timm.create_model(CARD["architecture"], num_classes=CARD["outputs"], **CARD["arguments"])
    from torchvision.models import get_model

    # note: no initialization, as all weights are loaded
    with torch.device("meta"):
        network: nn.Module = get_model(CARD["architecture"], weights=None, num_classes=CARD["outputs"])
    return network.to_empty(device="cpu")
