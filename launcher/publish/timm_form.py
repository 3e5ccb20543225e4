"""The config.json with which `timm.create_model("hf-hub:NAME/MODEL")` builds the network of an export."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from launcher.config.choices import LIBRARIES
from launcher.config.fields import edges
from launcher.models.timm import timm_architectures
from launcher.weights.card import LIBRARY_CONFIG
from launcher.weights.export_check import agrees
from launcher.weights.trained_model import exported_model

# Error of a logit relative to the largest one: both networks compute the same operations in another memory format.
_ROUNDING = 1e-5
_IMAGES = 2
# timm's names of how an image fits.
_CROP_MODES = {"crop": "center", "pad": "border", "stretch": "squash"}


def add_timm_config(folder: Path, card: Mapping[str, Any]) -> bool:
    """Write config.json into an export if timm's network of that name computes equal logits; return whether it does.

    card: of the export. torchvision's ResNets have timm's names and shapes.
    """
    architecture = card["architecture"].partition(".")[0]
    if card["surgery"] or card["library"] not in LIBRARIES or architecture not in timm_architectures():
        return False
    path = folder / LIBRARY_CONFIG
    path.write_text(json.dumps(_config(architecture, card), indent=2) + "\n", encoding="utf-8")
    if not _is_equal(folder, card):
        path.unlink()
        return False
    return True


def _config(architecture: str, card: Mapping[str, Any]) -> dict[str, Any]:
    """Return what timm reads: the network's arguments and the images that it takes."""
    from timm import get_pretrained_cfg

    values, known = card["input"], get_pretrained_cfg(architecture)
    channels, size = values.get("channels", 3), edges(values["size"])
    fixed = {"first_conv": known.first_conv, "classifier": known.classifier} if known else {}
    short = values["resize"]
    return {
        "architecture": architecture,
        "num_classes": card["outputs"],
        **({"label_names": card["classes"]} if len(card["classes"]) == card["outputs"] else {}),
        **({"model_args": card["arguments"]} if card["arguments"] else {}),
        "pretrained_cfg": {
            "custom_load": False,
            "num_classes": card["outputs"],
            "input_size": [channels, *size],
            "interpolation": values["interpolation"],
            "crop_pct": 1.0 if short is None else min(size) / short,
            "crop_mode": _CROP_MODES[values.get("fit", "crop")],
            "mean": values["mean"],
            "std": values["std"],
            **fixed,
        },
    }


@torch.inference_mode()
def _is_equal(folder: Path, card: Mapping[str, Any]) -> bool:
    """Return whether timm loads the folder and computes the logits of the export's network on noise."""
    import timm

    values = card["input"]
    noise = torch.randn(
        _IMAGES, values.get("channels", 3), *edges(values["size"]), generator=torch.Generator().manual_seed(0)
    )
    expected = exported_model(folder, "cpu").network(noise)
    try:
        with torch.random.fork_rng(devices=[]):
            logits = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(noise)
    # note: another version of timm may build this architecture otherwise
    except (RuntimeError, TypeError, ValueError):
        return False
    return logits.shape == expected.shape and agrees(logits, expected, _ROUNDING)
