"""Weights from elsewhere: a safetensors file, what `torch.save` has written, an export, or a library's own.

Nothing of a file is executed.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torchvision.models import get_model_weights

from launcher.config.models import TimmModel
from launcher.errors import Problem, UserError, is_of_the_machine
from launcher.weights.export import CARD
from launcher.weights.exported import read_card

# Where published files keep their weights beside other things, the averaged ones first.
_INSIDE = ("state_dict_ema", "model_ema", "ema", "weights", "state_dict", "model")
_SHA256_DIGITS = 64
_WRAPPERS = ("module.", "_orig_mod.")


@dataclass(frozen=True)
class FoundWeights:
    """Weights by the library's names, and what is known of them; `surgery` are the values of what changed the network.

    `mean` and `std` are those that pictures were normalised with.
    """

    told: str
    tensors: dict[str, Tensor]
    architecture: str | None = None
    surgery: dict[str, Any] | None = None
    classes: list[str] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None


def of_torchvision(architecture: str) -> FoundWeights:
    """The library's newest weights, downloaded once into torch's cache with the checksum that their name carries."""
    weights = get_model_weights(architecture).DEFAULT
    try:
        tensors = weights.get_state_dict(progress=True, check_hash=True)
    except (OSError, RuntimeError) as error:
        place = _cache() / Path(weights.url).name
        message = f"cannot be downloaded ({error}); fetch {weights.url} elsewhere, and put it at {place}"
        raise problem("torchvision", message) from None
    values = weights.transforms()
    return FoundWeights(
        f"torchvision's {weights}", tensors, architecture, {}, mean=list(values.mean), std=list(values.std)
    )


def of_timm(model: TimmModel) -> FoundWeights:
    """timm's own weights for that architecture, fitted by timm to the run's image side, with a head of theirs.

    Read from torch's cache if they were put there, else downloaded once into the hub's.
    """
    import timm

    config = timm.get_pretrained_cfg(model.architecture)
    if config is None or not config.hf_hub_id:
        raise problem("timm", f"timm has no weights of {model.architecture}; name a file, or leave it out")
    hub_name, file_name = config.hf_hub_id, config.hf_hub_filename or "model.safetensors"
    name = hub_name.rpartition("/")[2]
    place = _cache() / f"{name}{Path(file_name).suffix}"
    file = place if place.is_file() else _of_hub(hub_name, file_name, place)
    values: dict[str, Any] = {**model.keywords(), "pretrained_cfg_overlay": {"state_dict": of_file(file).tensors}}
    with torch.random.fork_rng(devices=[]):
        try:
            network = timm.create_model(model.architecture, pretrained=True, **values)
        # note: whatever timm meets in a file of other weights
        except Exception as error:
            reason = str(error).partition("\n")[0].rstrip(":")
            raise problem("timm", f"{file} does not hold {name} ({reason}); remove it") from error
    return FoundWeights(
        f"timm's {name}", network.state_dict(), model.architecture, {}, mean=list(config.mean), std=list(config.std)
    )


def _of_hub(hub_name: str, file_name: str, place: Path) -> Path:
    """A file of the hub, downloaded once into its cache and held against the checksum that is its name there.

    place: where one who has no network would put it.
    """
    from huggingface_hub import hf_hub_download, hf_hub_url
    from huggingface_hub.utils.logging import set_verbosity_error

    # note: each of its attempts is a warning otherwise
    set_verbosity_error()
    try:
        file = Path(hf_hub_download(hub_name, file_name))
    # note: of the hub's library, of what it downloads with, or the system's
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        reason = str(error).partition("\n")[0].rstrip(".")
        url = hf_hub_url(hub_name, file_name)
        message = f"cannot be downloaded ({reason}); fetch {url} elsewhere, and put it at {place}"
        raise problem("timm", message) from None
    blob = file.resolve()
    if len(blob.name) == _SHA256_DIGITS and _sha256(blob) != blob.name:
        raise problem("timm", f"{blob} is not what was to be downloaded; remove it, and start again")
    return file


def _cache() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def of_file(path: Path) -> FoundWeights:
    """Of a safetensors file, of the folder of an export, or of what `torch.save` has written."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise problem(path, f"cannot be read: {error.strerror}") from None
    if start[8:] == b"{":
        return _of_safetensors(path)
    try:
        with warnings.catch_warnings():
            # note: what it warns of ends in an error, which is told in one line
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    # note: torch fails on a file that it has not written with whatever error it happens to meet
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        message = "is no file of weights, or is cut short: neither safetensors nor torch can read it"
        if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
            message = "holds more than tensors, and is not read, since that could run code; save its state_dict() alone"
        raise problem(path, message) from None
    own = found.get("state") if isinstance(found, dict) else None
    if isinstance(own, dict) and _are_tensors(own.get("weights")):
        return FoundWeights(str(path), own["weights"], classes=own.get("classes"))
    tensors, place = _tensors(found)
    if not tensors:
        raise problem(path, "holds no weights: no mapping of names to tensors")
    return FoundWeights(f"{path} ({place})" if place else str(path), tensors)


def _of_safetensors(path: Path) -> FoundWeights:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise problem(path, f"is no whole safetensors file: {error}") from None
    try:
        surgery = json.loads(metadata.get("surgery", "null"))
    except ValueError as error:
        raise problem(path, f"says of itself what is no JSON: {error}; export the run again") from None
    found = FoundWeights(str(path), tensors, metadata.get("architecture"))
    if not isinstance(surgery, dict):
        return found
    prefix = "+".join(surgery) + "." if surgery else ""
    plain = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    found = replace(found, tensors=plain, surgery=surgery)
    if not (path.parent / CARD).is_file():
        return found
    card = read_card(path.parent / CARD)
    return replace(found, classes=card["classes"], mean=card["input"]["mean"], std=card["input"]["std"])


def _tensors(found: Any) -> tuple[dict[str, Tensor], str]:
    """The weights of what a file holds, without the names of what wrapped the network, and where in it they lay."""
    place = ""
    if isinstance(found, Mapping) and not _are_tensors(found):
        place = next((key for key in _INSIDE if isinstance(found.get(key), Mapping)), "")
        found = found.get(place)
    if not _are_tensors(found):
        return {}, place
    tensors = {str(name): tensor for name, tensor in found.items()}
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
    return tensors, place


def _are_tensors(found: Any) -> bool:
    """Whether it maps names to tensors, and has some."""
    return isinstance(found, Mapping) and bool(found) and all(isinstance(value, Tensor) for value in found.values())


def problem(value: Path | str | None, message: str, key: str = "model.weights") -> UserError:
    return UserError(Problem(message, key, value))
