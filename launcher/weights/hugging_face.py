"""The files with which Hugging Face's `GPT2LMHeadModel.from_pretrained(FOLDER)` loads an export of GPT-2's network."""

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from launcher.config.schema import RunConfig
from launcher.data.text.tokenizer import BYTES
from launcher.models.causal_transformer import is_turned
from launcher.models.gpt import GPTModel
from launcher.weights.card import network_changes

_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"


def as_gpt2(
    config: RunConfig, weights: Mapping[str, Tensor], card: Mapping[str, Any]
) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    """Return weights by the library's names, and the texts of its files; unchanged and none if the network differs.

    card: with `outputs`, `input` and `task`.
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
    files = {_CONFIG: json.dumps(values, indent=2) + "\n"}
    return names, files if tokenizer == BYTES else {**files, _TOKENIZER: tokenizer}
