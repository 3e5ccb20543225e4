"""Write and read the files of an export: weights, and a model card that describes their network.

Reading an export executes nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from launcher.config.schema import RunConfig
from launcher.data.text.tokenizer import BYTES
from launcher.models.causal_transformer import is_turned, network_names
from launcher.models.gpt import GPTModel
from launcher.weights.card import CARD, LIBRARY_CONFIG, WEIGHTS, network_changes

# In the card of weights, whose network does less than the run's predictions.
ONE_VIEW = (
    "The network of these weights computes one forward pass. The run's predictions and metrics average the logits of "
    "all `views` and, with `flip_average`, of their mirror images; `train predict` and an ONNX export do so."
)
IN_UNIT = (
    "The network of these weights computes normalized numbers. `train predict` and an ONNX export convert them to the "
    "unit of the training data, by number * scale + shift of this card's `task`."
)
_LOAD = "import launcher; network = launcher.load('.').network"
# The values of the changes of the network, in the card and in the metadata of the weights.
_CHANGES = "surgery"
_TOKENIZER = "tokenizer.json"


def write_weights(weights: Mapping[str, Tensor], folder: Path, card: Mapping[str, Any]) -> None:
    """Write the weights of an evaluation, and their card, into an existing folder.

    If the network is the library's, it loads the weights and computes the same. If training changed it, every tensor
    name starts with the names of the changes, so the library's network refuses the file.
    card: JSON values; at least those of `network_card`, and `classes`.
    """
    prefix = _prefix(card[_CHANGES])
    tensors = {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    metadata = {"format": "pt", "architecture": card["architecture"], _CHANGES: json.dumps(card[_CHANGES])}
    # note: safetensors' save_file makes files that only their owner can read
    (folder / WEIGHTS).write_bytes(save(tensors, metadata))
    write_card(folder, card)


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write or replace the model card only."""
    (folder / CARD).write_text(json.dumps(dict(card), indent=2) + "\n", encoding="utf-8")


def network_card(config: RunConfig) -> dict[str, Any]:
    """Return the card's values that describe the network and how to load it; the config has its number of outputs."""
    model, classes, changes = config.model, config.dataset.classes or 0, network_changes(config)
    # note: dropout and stochastic depth only act in training
    arguments = {key: value for key, value in model.keywords(config.dataset.channels).items() if "drop" not in key}
    keywords = ", ".join(f"{name}={value!r}" for name, value in {"num_classes": classes, **arguments}.items())
    constructors = {
        "timm": f"timm.create_model({model.architecture!r}, {keywords})",
        "torchvision": f"torchvision.models.{model.architecture}({keywords})",
    }
    made = None if changes or model.registered_by else constructors.get(model.library or "")
    load = f"network = {made}; network.load_state_dict(safetensors.torch.load_file('{WEIGHTS}'))" if made else _LOAD
    return {
        "library": model.library,
        "architecture": model.architecture,
        "outputs": classes,
        "arguments": arguments,
        "load": load,
        _CHANGES: changes,
    }


def as_gpt2(
    config: RunConfig, weights: Mapping[str, Tensor], card: Mapping[str, Any]
) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    """Return what Hugging Face's `GPT2LMHeadModel.from_pretrained(FOLDER)` loads: its names of weights, texts of files.

    Weights are unchanged, without files, if the network is not GPT-2's. card: with `outputs`, `input` and `task`.
    """
    model = config.model
    if not isinstance(model, GPTModel) or not model.is_gpt2 or network_changes(config):
        return weights, {}
    names = {f"transformer.{name}": tensor.T if is_turned(name) else tensor for name, tensor in weights.items()}
    end = card["input"]["end"]
    values = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": card["outputs"],
        "n_positions": model.context,
        "n_embd": model.width,
        "n_layer": model.depth,
        "n_head": model.heads,
        "n_inner": model.mlp_width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), end),
        "tie_word_embeddings": True,
    }
    tokenizer = card["task"].get("tokenizer") or BYTES
    files = {LIBRARY_CONFIG: json.dumps(values, indent=2) + "\n"}
    return names, files if tokenizer == BYTES else {**files, _TOKENIZER: tokenizer}


def read_weights(path: Path) -> tuple[dict[str, Tensor], str | None, dict[str, Any] | None]:
    """Return the tensors of a safetensors file by the network's names, its architecture and the network's changes.

    Architecture and changes are None if the file is not from an export.

    Raises ValueError if the file cannot be read or is incomplete, or its metadata are damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"is not a complete safetensors file: {error}") from None
    try:
        changes = json.loads(metadata.get(_CHANGES, "null"))
    except ValueError as error:
        raise ValueError(f"has metadata that are not JSON: {error}") from None
    if not isinstance(changes, dict):
        return tensors, metadata.get("architecture"), None
    plain = {name.removeprefix(_prefix(changes)): tensor for name, tensor in tensors.items()}
    plain = network_names(plain) if metadata.get("architecture") == "gpt" else plain
    return plain, metadata.get("architecture"), changes


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


def _prefix(changes: Mapping[str, Any]) -> str:
    return "+".join(changes) + "." if changes else ""
