"""Tokenizers of text: bytes, or a file of the `tokenizers` library; imports no torch."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launcher.errors import Problem, UserError
from launcher.installation import how_to_add

BYTES = "bytes"
KEY = "dataset.tokenizer"
# The names of the token that ends a document, in published tokenizers.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
# Decoders of tokens that hold all of the text, as GPT-2's and SentencePiece's do; those of words drop spaces.
_KEEP_SPACES = {"ByteLevel", "Metaspace", "Replace"}
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Tokenizer(ABC):
    """Numbers of texts, and back. end: the token that follows each document. sizes: bytes of each token, int64 [V].

    A token that stands for no text, such as `end`, has 0 bytes; all have if the tokenizer does not keep the spaces.
    """

    end: int
    sizes: np.ndarray

    @property
    def vocabulary(self) -> int:
        return len(self.sizes)

    @abstractmethod
    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the tokens of each text, on all cores."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> bytes:
        """Return the text of tokens."""


class ByteTokenizer(Tokenizer):
    """Each byte is a token; 256 ends a document."""

    end = 256
    sizes = np.array([1] * 256 + [0])

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode(self, tokens: Sequence[int]) -> bytes:
        return bytes(token for token in tokens if token < self.end)


class FileTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, from the text of its `tokenizer.json`."""

    def __init__(self, text: str, file: str):
        """Raises UserError if the library is not installed, or the file is no tokenizer with a token of the end."""
        try:
            from tokenizers import Tokenizer as Library
        except ImportError:
            message = f"needs the package tokenizers, which is not installed; run {how_to_add('tokenizers')}"
            raise UserError(Problem(message, KEY, file)) from None
        try:
            self._library = Library.from_str(text)
            content = json.loads(text)
        # note: the library raises Exception itself
        except Exception as error:
            message = f"is no file of the tokenizers library ({error}); pass a tokenizer.json"
            raise UserError(Problem(message, KEY, file)) from None
        # note: a file may hold the lengths that a model was trained with, and would cut documents
        self._library.no_truncation()
        self._library.no_padding()
        added = {one["content"]: one for one in content.get("added_tokens") or []}
        special = {name: one["id"] for name, one in added.items() if one["special"]}
        ends = [special[name] for name in _ENDS if name in special]
        if not ends:
            message = f"has no token that ends a document, one of {', '.join(_ENDS)}; add it as a special token"
            raise UserError(Problem(message, KEY, file))
        decoders = _decoders(content)
        self.end, by_byte = ends[0], "ByteLevel" in decoders
        numbers = self._library.get_vocab()
        if wrong := next((name for name, one in added.items() if numbers.get(name) != one["id"]), None):
            number = f"gives {wrong} the number {added[wrong]['id']}, but the library {numbers.get(wrong)}"
            raise UserError(Problem(f"{number}; fill the holes among the numbers before it", KEY, file))
        # note: other numbers may have holes
        self.sizes = np.zeros(max(numbers.values()) + 1, np.int64)
        for name, token in numbers.items():
            if name not in special and decoders & _KEEP_SPACES:
                is_byte, characters = _BYTE.fullmatch(name), by_byte and name not in added
                self.sizes[token] = len(name if characters else "?" if is_byte else name.replace("▁", " ").encode())

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        unicode = [text.decode("utf-8", errors="replace") for text in texts]
        # note: this is parallel, and leaves the interpreter free
        return [np.array(one.ids, np.int64) for one in self._library.encode_batch(unicode, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> bytes:
        return str(self._library.decode([*tokens], skip_special_tokens=True)).encode()


def _decoders(content: dict[str, Any]) -> set[str]:
    """Return the types of a tokenizer's decoders; with ByteLevel each character of a token's name stands for a byte."""
    decoder = content.get("decoder") or {}
    return {one.get("type") for one in (decoder, *decoder.get("decoders", []))}


def tokenizer_text(file: str | None) -> str:
    """Return the text of a tokenizer's file, or `bytes` without one; raises UserError if it cannot be read."""
    if file is None:
        return BYTES
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(Problem(f"cannot be read ({error}); pass a tokenizer.json", KEY, file)) from None


def tokenizer_of(text: str, file: str = "tokenizer.json") -> Tokenizer:
    """Return the tokenizer of `tokenizer_text`; file: for errors."""
    return ByteTokenizer() if text == BYTES else FileTokenizer(text, file)
