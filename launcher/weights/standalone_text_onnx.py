"""Load the language model of this folder in any program; needs onnxruntime, NumPy, and tokenizers if used.

from model import decode, encode, load, predict
network = load()
logits = predict(network, [encode("some text")])          # of the next token at each place, [1, tokens, vocabulary]

python model.py "some text"                               # prints it and its likeliest continuation
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from launcher.weights.standalone_card import FOLDER
from launcher.weights.standalone_text import main


def load() -> Any:
    """Return the network as an onnxruntime session on the CPU."""
    return onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])


def predict(network: Any, tokens: np.ndarray | list[list[int]]) -> np.ndarray:
    """Return logits [B, T, vocabulary] of tokens int64 [B, T]."""
    logits: np.ndarray = network.run(["logits"], {"tokens": np.asarray(tokens, np.int64)})[0]
    return logits


if __name__ == "__main__":
    network = load()
    main(lambda tokens: predict(network, tokens))
