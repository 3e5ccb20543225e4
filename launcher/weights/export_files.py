"""Write and read the files of an export: weights, a model card, and a module that rebuilds the network anywhere.

Reading an export executes nothing: its weights and its card describe the network.
"""

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from launcher.config.choices import ModelConfig, Surgery
from launcher.models.causal_transformer import own_names
from launcher.weights.card import CARD, WEIGHTS

MODEL = "model.py"
LOAD = "from model import load; network = load()"
# In the card, and in an ONNX file's metadata.
FLIP_AVERAGE = (
    "The network computes one forward pass. The run's predictions and metrics average the logits of each image and its "
    "horizontal mirror image; predict() in model.py does so, any other program must."
)
VIEWS = (
    "The network gets views of an image of the size `views` has in this card. The run's predictions and metrics "
    "average the logits of all views; predict() in model.py does so, any other program must."
)
IN_UNIT = (
    "The network computes normalized numbers. predict() in model.py converts them to the unit of the training data, by "
    "number * scale + shift of this card's `task`; any other program must."
)

_FUTURE = "from __future__ import annotations\n"
_IMPORT = re.compile(r"^from launcher\.weights\.(\w+) import .*\n", re.MULTILINE)
_NO_NETWORK = "NETWORK: Callable[..., nn.Module] | None = None\n"
_NO_SURGERY = "SURGERY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}\n"


def write_export(
    weights: Mapping[str, Tensor],
    folder: Path,
    card: Mapping[str, Any],
    surgeries: Mapping[str, Surgery],
    network: tuple[str, str] = ("", "None"),
    program: str = "standalone",
) -> None:
    """Write the three files into an existing folder.

    Without surgeries the weights also load into the library's own network and compute the same there. With surgeries
    every tensor name starts with the names of the surgeries: the library's network refuses the file, and only model.py
    loads it. The file's metadata contain the architecture and the surgeries.
    card: JSON values; at least those of `network_card`, `classes`, and `surgery` with its values by name. network: the
    `source` of a model that is in no library. program: of the task (`TaskConfig.program`).
    """
    prefix = _prefix(surgeries)
    tensors = {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    metadata = {"format": "pt", "architecture": card["architecture"], "surgery": json.dumps(card["surgery"])}
    # note: safetensors' save_file makes files that only their owner can read
    (folder / WEIGHTS).write_bytes(save(tensors, metadata))
    (folder / MODEL).write_text(model_source(surgeries, network, program), encoding="utf-8")
    write_card(folder, card)


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write or replace the model card only."""
    (folder / CARD).write_text(json.dumps(dict(card), indent=2) + "\n", encoding="utf-8")


def network_card(model: ModelConfig, classes: int, channels: int = 3, *, changed: bool) -> dict[str, Any]:
    """Return the card's values that describe the network and how to load it; `changed` if there are surgeries."""
    # note: dropout and stochastic depth only act in training
    arguments = {name: value for name, value in model.keywords(channels).items() if "drop" not in name}
    keywords = ", ".join(f"{name}={value!r}" for name, value in {"num_classes": classes, **arguments}.items())
    constructors = {
        "timm": f"timm.create_model({model.architecture!r}, {keywords})",
        "torchvision": f"torchvision.models.{model.architecture}({keywords})",
    }
    load = LOAD
    if not changed and (made := constructors.get(model.library)):
        load = f"network = {made}; network.load_state_dict(safetensors.torch.load_file('{WEIGHTS}'))"
    return {
        "library": model.library,
        "architecture": model.architecture,
        "outputs": classes,
        "arguments": arguments,
        "load": load,
    }


def model_source(
    surgeries: Mapping[str, Surgery], network: tuple[str, str] = ("", "None"), program: str = "standalone"
) -> str:
    """Return the source of a module that rebuilds a network with these surgeries, by name and in this order.

    network: the `source` of the model. It and surgeries may use the imports of standalone_network.py.
    """
    parts = dict.fromkeys(part for surgery in surgeries.values() for part in (*surgery.parts, surgery.change))
    rows = "".join(f'    "{name}": ({s.change.__name__}, {s.values!r}),\n' for name, s in surgeries.items())
    text = module_source(f"{program}_torch.py")
    assert text.count(_NO_SURGERY) == text.count(_NO_NETWORK) == 1
    if surgeries:
        surgery = _NO_SURGERY.replace("{}", f"{{\n{rows}}}")
        text = text.replace(_NO_SURGERY, "\n\n".join([*map(inspect.getsource, parts), surgery]))
    source, called = network
    if source:
        text = text.replace(_NO_NETWORK, "\n\n".join([source, _NO_NETWORK.replace("None\n", f"{called}\n")]))
    return text


def module_source(name: str) -> str:
    """Return the source of a module of this folder, with its imports of others there replaced by their sources."""
    head, future, body = _source(name).partition(_FUTURE)
    return head + future + _with_parts(body, set())


def _with_parts(source: str, present: set[str]) -> str:
    """Replace the imports of parts in a source by their code, at the first import of each."""

    def part(found: re.Match[str]) -> str:
        if found[1] in present:
            return ""
        present.add(found[1])
        return _with_parts(_source(f"{found[1]}.py").partition(_FUTURE)[2].lstrip("\n"), present)

    return _IMPORT.sub(part, source)


def _source(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def read_weights(path: Path) -> tuple[dict[str, Tensor], str | None, dict[str, Any] | None]:
    """Return the tensors of a safetensors file by the network's names, its architecture and its surgery values.

    Architecture and surgery are None if the file is not from an export.

    Raises ValueError if the file cannot be read or is incomplete, or its metadata are damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"is not a complete safetensors file: {error}") from None
    try:
        surgery = json.loads(metadata.get("surgery", "null"))
    except ValueError as error:
        raise ValueError(f"has metadata that are not JSON: {error}") from None
    if not isinstance(surgery, dict):
        return tensors, metadata.get("architecture"), None
    plain = {name.removeprefix(_prefix(surgery)): tensor for name, tensor in tensors.items()}
    plain = own_names(plain) if metadata.get("architecture") == "gpt" else plain
    return plain, metadata.get("architecture"), surgery


def differences(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Describe each tensor whose name or shape differs from the network's."""
    shapes = [
        f"{name} is {_shape(weights[name])} instead of {_shape(tensor)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    missing = [f"{name} is missing" for name in expected if name not in weights]
    return shapes + missing + [f"{name} is not part of the network" for name in weights if name not in expected]


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


def _prefix(surgeries: Mapping[str, Any]) -> str:
    return "+".join(surgeries) + "." if surgeries else ""
