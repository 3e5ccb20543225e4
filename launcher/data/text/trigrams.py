"""A trigram model of bytes, with which a language model is compared; imports no torch."""

import math

import numpy as np

_SYMBOLS = 257


def trigram_perplexity(train: np.ndarray, val: np.ndarray) -> float:
    """Return the perplexity on tokens of a trigram model of others, both byte tokens [N] with 256 as the end.

    Witten-Bell's interpolation (1991): orders below fill in as a context has more different successors.
    """
    train, val = train.astype(np.int64), val.astype(np.int64)
    probability = np.full(len(val) - 2, 1 / _SYMBOLS)
    for order in (1, 2, 3):
        counts = np.bincount(_codes(train, order), minlength=_SYMBOLS**order).reshape(-1, _SYMBOLS)
        total, different = counts.sum(1), (counts > 0).sum(1)
        codes = _codes(val, order)[3 - order :]
        context, times = codes // _SYMBOLS, counts.reshape(-1)[codes]
        weight = different[context]
        seen = total[context] > 0
        mixed = (times + weight * probability) / np.maximum(1, total[context] + weight)
        probability = np.where(seen, mixed, probability)
    return math.exp(-np.log(probability).mean())


def _codes(tokens: np.ndarray, order: int) -> np.ndarray:
    """Return the number of each run of `order` tokens."""
    count, codes = len(tokens) - order + 1, np.zeros(len(tokens) - order + 1, np.int64)
    for place in range(order):
        codes = codes * _SYMBOLS + tokens[place : place + count]
    return codes
