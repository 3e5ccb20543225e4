"""Load weights from a run, an export, a safetensors file, a file of `torch.save`, or a library.

Loading executes no code of a file.
"""

import argparse
import json
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join, quote
from typing import Any

import torch
from torch import Tensor
from torchvision.models import get_model_weights

from launcher.config.choices import HUB, LIBRARIES, ModelConfig
from launcher.config.schema import RunConfig
from launcher.errors import is_of_the_machine
from launcher.models.smp import SmpModel
from launcher.models.timm import TimmModel
from launcher.records.run_folder import RunFolder
from launcher.training import checkpoint
from launcher.weights.card import CARD, LIBRARY_CONFIG, find_weights, network_changes, problem, read_card
from launcher.weights.export_files import read_weights
from launcher.weights.trained_model import load_checkpoint

# The keys of the weights in published files that contain other values too; averaged weights come first.
_KEYS_OF_WEIGHTS = ("state_dict_ema", "model_ema", "ema", "weights", "state_dict", "model", "teacher")
# DINO's checkpoints have the backbone of the teacher beside its head, which classifies nothing.
_BACKBONES = {"teacher": "backbone."}
_WRAPPERS = ("module.", "_orig_mod.")
# A program that reads a file with all its classes, which runs their code, and writes its weights alone.
_CONVERT = (
    "import sys, torch; c = torch.load(sys.argv[1], map_location='cpu', weights_only=False); "
    f"inner = [c[k] for k in {_KEYS_OF_WEIGHTS} if k in c] if isinstance(c, dict) else []; "
    "w = next((one for one in inner if isinstance(one, (dict, torch.nn.Module))), c); "
    "torch.save(getattr(w, 'state_dict', lambda: w)(), sys.argv[2])"
)


@dataclass(frozen=True)
class SourceWeights:
    """Weights by the library's names, and the facts that their source contains.

    `origin` describes them in messages; `changes` has the values of each change of the library's network; `config` is
    that of the run that trained them; without one, `mean` and `std` are those of the normalization, if known.
    """

    origin: str
    tensors: dict[str, Tensor]
    architecture: str | None = None
    changes: dict[str, Any] | None = None
    classes: list[str] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    config: RunConfig | None = None


def load_weights(model: ModelConfig) -> SourceWeights:
    """Load the weights of `model.weights`.

    Raises UserError if they do not exist or cannot be read.
    """
    if isinstance(model, SmpModel) and model.weights == model.pretrained:
        return _of_smp(model)
    if model.weights in LIBRARIES:
        return _of_timm(model) if isinstance(model, TimmModel) else _of_torchvision(model.architecture)
    assert model.weights is not None
    path, config = find_weights(model.weights)
    if model.weights.startswith(HUB):
        return _of_hub(model.weights, path)
    if config is None:
        return _with_normalization(_of_file(path), path.parent)
    return _of_run(
        path, config, load_checkpoint(RunFolder(path), best=False) if path.is_dir() else checkpoint.load(path)
    )


def _of_run(path: Path, config: RunConfig, state: dict[str, Any]) -> SourceWeights:
    origin, classes = f"{path} at step {state['step']:,}", state.get("classes")
    architecture, changes = config.model.architecture, network_changes(config)
    return SourceWeights(origin, state["weights"], architecture, changes, classes, config=config)


def _of_torchvision(architecture: str) -> SourceWeights:
    """Load the library's newest weights, downloaded once into torch's cache with a checksum test."""
    weights = get_model_weights(architecture).DEFAULT
    try:
        tensors = weights.get_state_dict(progress=True, check_hash=True)
    except (OSError, RuntimeError) as error:
        place = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
        message = f"cannot be downloaded ({error}); download {weights.url} elsewhere and copy it to {place}"
        raise problem("torchvision", message) from None
    values = weights.transforms()
    return SourceWeights(
        f"torchvision's {weights}", tensors, architecture, {}, mean=list(values.mean), std=list(values.std)
    )


def _of_timm(model: TimmModel) -> SourceWeights:
    """Load timm's weights of an architecture with their own head, adapted by timm to the run's image size.

    They are downloaded once into the cache of the Hugging Face Hub.
    """
    import timm
    from huggingface_hub.utils.logging import set_verbosity_error

    config = timm.get_pretrained_cfg(model.architecture)
    if config is None or not config.hf_hub_id:
        raise problem("timm", f"timm has no weights of {model.architecture}; set a file, or null for none")
    name, mean, std = config.hf_hub_id, list(config.mean), list(config.std)
    keywords: dict[str, Any] = model.keywords()
    # note: otherwise each download attempt prints a warning
    set_verbosity_error()
    try:
        with torch.random.fork_rng(devices=[]):
            network = timm.create_model(model.architecture, pretrained=True, **keywords)
    # note: errors of the Hub's library, its HTTP client, the system, or timm on a damaged file
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        reason = str(error).partition("\n")[0].rstrip(".:")
        elsewhere = f"type `hf download {name} model.safetensors config.json --local-dir FOLDER` on another machine, "
        elsewhere += "copy FOLDER here, and set model.weights=FOLDER/model.safetensors"
        raise problem("timm", f"{name} cannot be loaded ({reason}); {elsewhere}") from None
    return SourceWeights(f"timm's {name}", network.state_dict(), model.architecture, {}, mean=mean, std=std)


def _of_smp(model: SmpModel) -> SourceWeights:
    """Load the weights of an encoder of segmentation-models-pytorch, from the Hub or its cache."""
    try:
        with torch.random.fork_rng(devices=[]):
            name, tensors = model.encoder_weights()
    # note: errors of the Hub's library, its HTTP client, the system, or a damaged file
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        reason = str(error).partition("\n")[0].rstrip(".:")
        message = f"the weights of {model.encoder} cannot be loaded ({reason}); set a file of its encoder, or null"
        raise problem("smp", message) from None
    return SourceWeights(f"segmentation-models-pytorch's {name}", tensors)


def _of_file(path: Path) -> SourceWeights:
    """Load a safetensors file, also one of an export, or a file of `torch.save`."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise problem(path, f"cannot be read: {error.strerror}; check its permissions") from None
    if start[8:] == b"{":
        return _of_safetensors(path)
    try:
        # note: torch before 1.6 did not write archives
        if zipfile.is_zipfile(path):
            checkpoint.check_archive(path)
        with warnings.catch_warnings():
            # note: the cause of a warning ends in an error, which is one line
            warnings.simplefilter("ignore")
            # note: timm's checkpoints hold the arguments of its command
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    # note: torch raises any kind of error on a file that it has not written
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        message = (
            "is not a file of weights or is cut short: neither safetensors nor torch can read it; set another file"
        )
        if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
            message = _of_classes(path, str(error))
        raise problem(path, message) from None
    state = content.get("state") if isinstance(content, dict) else None
    if isinstance(state, dict) and _are_tensors(state.get("weights")):
        return SourceWeights(str(path), state["weights"], classes=state.get("classes"))
    tensors, key = _tensors(content)
    if not tensors:
        raise problem(path, "contains no mapping of names to tensors; set another file")
    return SourceWeights(f"{path} ({key})" if key else str(path), tensors)


def _of_classes(path: Path, refusal: str) -> str:
    """Describe a file with objects of a class that torch refuses, and print how to convert it."""
    refused = re.search(r"GLOBAL ([\w.]+)", refusal)
    message = f"contains {refused[1] if refused else 'a class'}, more than tensors, and could run code"
    if re.search(r"whose module \S+ is blocked", refusal):
        return f"{message}; set another file"
    weights = f"{path.stem}-weights.pt"
    line = join([sys.executable, "-c", _CONVERT, str(path), weights])
    return f"{message}; only if you trust it, convert it and set {quote(weights)} instead: {line}"


def _of_hub(name: str, path: Path) -> SourceWeights:
    """Load the downloaded file of a repository."""
    return _with_normalization(replace(_of_file(path), origin=name), path.parent)


def _with_normalization(source: SourceWeights, folder: Path) -> SourceWeights:
    """Return weights with the mean and standard deviation in the config.json of timm's models in the same folder."""
    if source.config is not None:
        return source
    try:
        values = json.loads((folder / LIBRARY_CONFIG).read_bytes())["pretrained_cfg"]
        mean, std = ([float(one) for one in values[key]] for key in ("mean", "std"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return source
    return replace(source, mean=mean, std=std)


def _of_safetensors(path: Path) -> SourceWeights:
    try:
        weights = SourceWeights(str(path), *read_weights(path))
    except ValueError as error:
        raise problem(path, str(error)) from None
    if weights.changes is None or not (path.parent / CARD).is_file():
        return weights
    config, classes, _ = read_card(path.parent / CARD)
    return replace(weights, classes=classes, config=config)


def _tensors(content: Any) -> tuple[dict[str, Tensor], str]:
    """Return the weights in a file's content without the prefixes of wrappers, and the key that contained them."""
    key = ""
    if isinstance(content, Mapping) and not _are_tensors(content):
        key = next((key for key in _KEYS_OF_WEIGHTS if isinstance(content.get(key), Mapping)), "")
        content = content.get(key)
    if not _are_tensors(content):
        return {}, key
    tensors = {str(name): tensor for name, tensor in content.items()}
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
    if backbone := _BACKBONES.get(key):
        inside = {name: tensor for name, tensor in tensors.items() if name.startswith(backbone)}
        tensors = {name.removeprefix(backbone): tensor for name, tensor in inside.items()}
    return tensors, key


def _are_tensors(content: Any) -> bool:
    """Return whether the content is a mapping of at least one name to tensors only."""
    return isinstance(content, Mapping) and bool(content) and all(isinstance(v, Tensor) for v in content.values())
