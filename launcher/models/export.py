"""Weights to use elsewhere: safetensors, a model card, and a module that rebuilds the network without this project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torchvision.models import get_model

from launcher.models.surgery import Surgery, model_source

WEIGHTS, MODEL, CARD = "model.safetensors", "model.py", "model_card.json"
FILES = (WEIGHTS, MODEL, CARD)


def write_export(
    weights: Mapping[str, Tensor], folder: Path, card: Mapping[str, Any], surgeries: Mapping[str, Surgery]
) -> None:
    """Write the three files into a folder that is there.

    Without surgeries the weights load into torchvision's network and compute the same there. With them every name
    starts with theirs, which no torchvision network takes, and only model.py does. The file's metadata name both.
    card: what JSON can hold; has at least `architecture` (torchvision's name), the names of the `classes`, and
    `surgery`, the surgeries' values by name.

    Raises:
        ValueError: names other than torchvision's although there is no surgery.
    """
    if not surgeries:
        _check_names(set(weights), card["architecture"], len(card["classes"]))
    prefix = "+".join(surgeries) + "." if surgeries else ""
    tensors = {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    metadata = {"format": "pt", "architecture": card["architecture"], "surgery": json.dumps(card["surgery"])}
    # note: safetensors' own writer makes files that nobody else may read
    (folder / WEIGHTS).write_bytes(save(tensors, metadata))
    (folder / MODEL).write_text(model_source(surgeries), encoding="utf-8")
    write_card(folder, card)


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write or replace the card alone."""
    (folder / CARD).write_text(json.dumps(dict(card), indent=2) + "\n", encoding="utf-8")


def _check_names(names: set[str], architecture: str, classes: int) -> None:
    with torch.device("meta"):
        expected = set(get_model(architecture, weights=None, num_classes=classes).state_dict())
    if names != expected:
        unknown, missing = sorted(names - expected), sorted(expected - names)
        raise ValueError(f"not the parameters of {architecture}: unknown {unknown}, missing {missing}")
