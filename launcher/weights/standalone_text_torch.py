"""Load the language model of this folder in any program; needs torch, safetensors, and tokenizers if used.

from model import decode, encode, load, predict
network = load()                                          # in evaluation mode
logits = predict(network, [encode("some text")])          # of the next token at each place, [1, tokens, vocabulary]

python model.py "some text"                               # prints it and its likeliest continuation
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from launcher.weights.standalone_network import load
from launcher.weights.standalone_text import main


@torch.inference_mode()
def predict(network: nn.Module, tokens: Tensor | np.ndarray | list[list[int]]) -> Tensor:
    """Return logits [B, T, vocabulary] of tokens int64 [B, T]."""
    logits: Tensor = network(torch.as_tensor(tokens))
    return logits


if __name__ == "__main__":
    network = load()
    main(lambda tokens: predict(network, tokens).numpy())
