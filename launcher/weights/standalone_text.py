"""The part that model.py has in every export of a language model; needs NumPy, and tokenizers if it has a tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from launcher.weights.standalone_card import CARD

_MOST_TOKENS = 100


def encode(text: str) -> list[int]:
    """Return the tokens of a text."""
    return list(text.encode()) if _tokenizer() == "bytes" else _library().encode(text, add_special_tokens=False).ids


def decode(tokens: list[int]) -> str:
    """Return the text of tokens."""
    if _tokenizer() == "bytes":
        return bytes(token for token in tokens if token < 256).decode(errors="replace")
    return str(_library().decode(tokens, skip_special_tokens=True))


def _tokenizer() -> str:
    tokenizer: str | None = CARD["task"].get("tokenizer")
    return tokenizer or sys.exit("this model was trained on tokens of an unknown tokenizer; use load and predict")


def _library() -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(_tokenizer())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def main(logits_of: Callable[[np.ndarray], np.ndarray]) -> None:
    """Print the text on the command line and its likeliest continuation."""
    if len(sys.argv) != 2:
        sys.exit("usage: python model.py TEXT")
    try:
        known = encode(sys.argv[1]) or [CARD["input"]["end"]]
    except UnicodeEncodeError:
        sys.exit("the text is not in UTF-8")
    start = len(known)
    for _ in range(_MOST_TOKENS):
        window = np.array([known[-CARD["input"]["length"] :]], np.int64)
        token = int(logits_of(window)[0, -1].argmax())
        if token == CARD["input"]["end"]:
            break
        known.append(token)
    before, whole = decode(known[:start]), decode(known)
    print(sys.argv[1] + (whole.removeprefix(before) if whole.startswith(before) else decode(known[start:])))
