"""Weights to use elsewhere: safetensors, a model card, and a module that rebuilds the network without this project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torchvision.models import get_model

from launcher.config import schema
from launcher.config.models import timm_architectures
from launcher.models.surgery import Surgery, model_source
from launcher.models.vision_transformer import PARTS, VisionTransformer

OWN = "model.py"  # a card's library, if the network is no library's
WEIGHTS, MODEL, CARD = "model.safetensors", "model.py", "model_card.json"
FILES = (WEIGHTS, MODEL, CARD)


def write_export(
    weights: Mapping[str, Tensor], folder: Path, card: Mapping[str, Any], surgeries: Mapping[str, Surgery]
) -> None:
    """Write the three files into a folder that is there.

    Without surgeries the weights load into the library's network, if it is of one, and compute the same there. With
    them every name starts with theirs, which no network of a library takes, and only model.py does. The file's metadata
    name both.
    card: what JSON can hold; has at least what `source` gives, the names of the `classes`, and `surgery`, the
    surgeries' values by name.

    Raises:
        ValueError: names other than the library's although there is no surgery.
    """
    if not surgeries:
        _check_names(set(weights), card)
    prefix = "+".join(surgeries) + "." if surgeries else ""
    tensors = {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    metadata = {"format": "pt", "architecture": card["architecture"], "surgery": json.dumps(card["surgery"])}
    # note: safetensors' own writer makes files that nobody else may read
    (folder / WEIGHTS).write_bytes(save(tensors, metadata))
    network = PARTS if card["library"] == OWN else ()
    (folder / MODEL).write_text(model_source(surgeries, network), encoding="utf-8")
    write_card(folder, card)


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write or replace the card alone."""
    (folder / CARD).write_text(json.dumps(dict(card), indent=2) + "\n", encoding="utf-8")


def source(model: schema.Model, classes: int, *, changed: bool) -> dict[str, Any]:
    """What a card says of where a network comes from, and how it is loaded; `changed` by surgeries."""
    arguments = {} if isinstance(model, schema.TorchvisionModel) else model.keywords()
    # note: what drops in training has no part in evaluation
    arguments = {name: value for name, value in arguments.items() if "drop" not in name}
    given = "".join(f", {name}={value!r}" for name, value in {"num_classes": classes, **arguments}.items())[2:]
    is_timm = isinstance(model, schema.TimmModel)
    made = (
        f"timm.create_model({model.architecture!r}, {given})"
        if is_timm
        else f"torchvision.models.{model.architecture}({given})"
    )
    is_own = isinstance(model, schema.VisionTransformerModel)
    load = f"network = {made}; network.load_state_dict(safetensors.torch.load_file('{WEIGHTS}'))"
    return {
        "library": "timm" if is_timm else OWN if is_own else "torchvision",
        "architecture": model.architecture,
        "arguments": arguments,
        "load": "from model import load; network = load()" if changed or is_own else load,
    }


def plain_network(card: Mapping[str, Any]) -> nn.Module:
    """The library's network of a card, without surgery and with weights still to be loaded; nothing is downloaded.

    Raises:
        ValueError: the card asks for something else than a classifier.
    """
    architecture, classes = card["architecture"], len(card["classes"])
    if card.get("library") == OWN:
        return VisionTransformer(classes, **card["arguments"])
    if card.get("library") != "timm":
        network: nn.Module = get_model(architecture, weights=None, num_classes=classes)
        return network
    import timm

    from launcher.models.timm_network import NOT_GIVEN

    arguments: dict[str, Any] = card["arguments"]
    if architecture not in timm_architectures() or not NOT_GIVEN.keys().isdisjoint(arguments):
        raise ValueError(f"no classifier of timm's: {architecture} with {arguments}")
    return timm.create_model(architecture, num_classes=classes, **arguments)


def _check_names(names: set[str], card: Mapping[str, Any]) -> None:
    with torch.device("meta"):
        expected = set(plain_network(card).state_dict())
    if names != expected:
        unknown, missing = sorted(names - expected), sorted(expected - names)
        raise ValueError(f"not the parameters of {card['architecture']}: unknown {unknown}, missing {missing}")
