"""Load weights from elsewhere: a run, an export, a safetensors file, a file of `torch.save`, or a library's own.

Nothing of a file is executed.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models import get_model_weights

from launcher.config.keys import nearest
from launcher.config.models import BaseModel, TimmModel
from launcher.config.resolved import read
from launcher.errors import Problem, UserError, is_of_the_machine
from launcher.plan.plan import plan_for
from launcher.records.folder import RunFolder
from launcher.training import checkpoint
from launcher.weights.classifier import initial_network, saved
from launcher.weights.export_files import CARD, WEIGHTS, read_card, read_weights

# The keys under which published files keep their weights beside other things; averaged weights come first.
_KEYS_OF_WEIGHTS = ("state_dict_ema", "model_ema", "ema", "weights", "state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")


@dataclass(frozen=True)
class SourceWeights:
    """Weights by the library's names, and what is known of them.

    `origin` is what messages call them; `surgery` holds the values of what changed the library's network; `mean` and
    `std` are those that images were normalised with.
    """

    origin: str
    tensors: dict[str, Tensor]
    architecture: str | None = None
    surgery: dict[str, Any] | None = None
    classes: list[str] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None


def load_weights(model: BaseModel) -> SourceWeights:
    """Load the weights that `model.weights` names.

    Raises:
        UserError: there are none, or they cannot be read.
    """
    assert model.weights is not None
    if model.weights in ("torchvision", "timm"):
        if model.weights != model.library:
            own = f"model.weights={model.library}, " if model.library in ("torchvision", "timm") else ""
            raise problem(model.weights, f"has none for this model; set {own}a file, a run folder or an export")
        return _of_timm(model) if isinstance(model, TimmModel) else _of_torchvision(model.architecture)
    path = Path(model.weights)
    if RunFolder(path).exists():
        return _of_run(RunFolder(path), saved(RunFolder(path), best=False))
    if path.is_file() and RunFolder(path.parent.parent).checkpoints == path.parent:
        return _of_run(RunFolder(path.parent.parent), checkpoint.load(path))
    if (path / WEIGHTS).is_file():
        path /= WEIGHTS
    if not path.is_file():
        beside = nearest(path.name, (other.name for other in path.parent.glob("*"))) if path.parent.is_dir() else None
        hint = f"; did you mean {path.parent / beside}?" if beside else ""
        raise problem(model.weights, f"is no file, run folder or export{hint}")
    return _of_file(path)


def _of_run(folder: RunFolder, state: dict[str, Any]) -> SourceWeights:
    config = read(folder.config)
    return SourceWeights(
        f"{folder.path} at step {state['step']:,}",
        state["weights"],
        config.model.architecture,
        {name: surgery.values for name, surgery in initial_network(plan_for(config, 1))[1].items()},
        state.get("classes"),
        list(config.dataset.mean),
        list(config.dataset.std),
    )


def _of_torchvision(architecture: str) -> SourceWeights:
    """Load the library's newest weights, downloaded once into torch's cache with the checksum that their name holds."""
    weights = get_model_weights(architecture).DEFAULT
    try:
        tensors = weights.get_state_dict(progress=True, check_hash=True)
    except (OSError, RuntimeError) as error:
        place = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
        message = f"cannot be downloaded ({error}); fetch {weights.url} elsewhere, and put it at {place}"
        raise problem("torchvision", message) from None
    values = weights.transforms()
    return SourceWeights(
        f"torchvision's {weights}", tensors, architecture, {}, mean=list(values.mean), std=list(values.std)
    )


def _of_timm(model: TimmModel) -> SourceWeights:
    """Load timm's own weights for an architecture, fitted by timm to the run's image size, with their own head.

    They are downloaded once into the cache of the Hugging Face hub.
    """
    import timm
    from huggingface_hub.utils.logging import set_verbosity_error

    config = timm.get_pretrained_cfg(model.architecture)
    if config is None or not config.hf_hub_id:
        raise problem("timm", f"timm has no weights of {model.architecture}; name a file, or remove the key")
    name, mean, std = config.hf_hub_id, list(config.mean), list(config.std)
    keywords: dict[str, Any] = model.keywords()
    # note: otherwise each attempt of a download is a warning
    set_verbosity_error()
    try:
        with torch.random.fork_rng(devices=[]):
            network = timm.create_model(model.architecture, pretrained=True, **keywords)
    # note: of the hub's library, its HTTP client, the system, or of timm where it meets a damaged file
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        reason = str(error).partition("\n")[0].rstrip(".:")
        elsewhere = f"download model.safetensors of https://huggingface.co/{name} elsewhere, and set model.weights=FILE"
        values = f"dataset.mean={mean} dataset.std={std}".replace(", ", ",")
        raise problem("timm", f"{name} cannot be loaded ({reason}); {elsewhere} {values}") from None
    return SourceWeights(f"timm's {name}", network.state_dict(), model.architecture, {}, mean=mean, std=std)


def _of_file(path: Path) -> SourceWeights:
    """Load a safetensors file, that of an export, or what `torch.save` has written."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise problem(path, f"cannot be read: {error.strerror}") from None
    if start[8:] == b"{":
        return _of_safetensors(path)
    try:
        # note: torch has written no archive before 1.6
        if zipfile.is_zipfile(path):
            checkpoint.check_archive(path)
        with warnings.catch_warnings():
            # note: what torch warns of ends in an error, which is reported in one line
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    # note: on a file that torch has not written it raises whatever it happens to meet
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        message = "is no file of weights, or is cut short: neither safetensors nor torch can read it"
        if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
            message = "holds more than tensors, and is not read, since that could run code; save its state_dict() alone"
        raise problem(path, message) from None
    own = content.get("state") if isinstance(content, dict) else None
    if isinstance(own, dict) and _are_tensors(own.get("weights")):
        return SourceWeights(str(path), own["weights"], classes=own.get("classes"))
    tensors, place = _tensors(content)
    if not tensors:
        raise problem(path, "holds no weights: no mapping of names to tensors")
    return SourceWeights(f"{path} ({place})" if place else str(path), tensors)


def _of_safetensors(path: Path) -> SourceWeights:
    try:
        weights = SourceWeights(str(path), *read_weights(path))
    except ValueError as error:
        raise problem(path, str(error)) from None
    if weights.surgery is None or not (path.parent / CARD).is_file():
        return weights
    config, classes = read_card(path.parent / CARD)
    return replace(weights, classes=classes, mean=list(config.dataset.mean), std=list(config.dataset.std))


def _tensors(content: Any) -> tuple[dict[str, Tensor], str]:
    """Return the weights in a file's content, without the prefixes of wrappers, and the key that they were under."""
    place = ""
    if isinstance(content, Mapping) and not _are_tensors(content):
        place = next((key for key in _KEYS_OF_WEIGHTS if isinstance(content.get(key), Mapping)), "")
        content = content.get(place)
    if not _are_tensors(content):
        return {}, place
    tensors = {str(name): tensor for name, tensor in content.items()}
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
    return tensors, place


def _are_tensors(content: Any) -> bool:
    """Return whether it maps names to tensors, and has some."""
    return isinstance(content, Mapping) and bool(content) and all(isinstance(v, Tensor) for v in content.values())


def problem(value: Path | str | None, message: str, key: str = "model.weights") -> UserError:
    """Return what is wrong with the weights to start from."""
    return UserError(Problem(message, key, value))
