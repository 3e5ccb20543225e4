"""Weights to use elsewhere: a safetensors file with torchvision's parameter names, and a model card beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models import get_model

WEIGHTS = "model.safetensors"
CARD = "model_card.json"


def export(state_dict: Mapping[str, Tensor], folder: Path, card: Mapping[str, Any]) -> Path:
    """Write `model.safetensors` and `model_card.json` into the folder; returns the path of the weights.

    card: what JSON can hold; has at least `architecture` (torchvision's name), `classes`, and `surgery`, the
    names of the algorithms that changed the model. Without surgery the weights load into torchvision's model.

    Raises:
        ValueError: names other than torchvision's although the card names no surgery.
    """
    weights = {name.removeprefix("module."): tensor.detach().cpu().contiguous() for name, tensor in state_dict.items()}
    if not card["surgery"]:
        _check_names(set(weights), card["architecture"], card["classes"])
    text = json.dumps(dict(card), indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WEIGHTS
    temporary = folder / f".{WEIGHTS}.tmp"
    save_file(weights, temporary, metadata={"format": "pt"})
    temporary.replace(path)
    temporary = folder / f".{CARD}.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / CARD)
    return path


def _check_names(names: set[str], architecture: str, classes: int) -> None:
    with torch.device("meta"):
        expected = set(get_model(architecture, weights=None, num_classes=classes).state_dict())
    if names != expected:
        unknown, missing = sorted(names - expected), sorted(expected - names)
        raise ValueError(f"not the parameters of {architecture}: unknown {unknown}, missing {missing}")
