"""Sequences of tokens, read from memory-mapped files in the process of a rank."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from launcher.data.batch import Loaded
from launcher.data.images import Reader
from launcher.data.index import Images
from launcher.data.sampling import Request
from launcher.data.text.shards import Stream


class TokenReader(Reader):
    """Reads the sequences of a split: `length` tokens each, one after the other, and for each token the next one.

    A split with fewer samples than sequences has evenly spaced ones of them.
    """

    def __init__(self, split: Images, length: int, tokenizer: str | None, vocabulary: int | None):
        self._stream, self._length = Stream([Path(split.root, file) for file in split.names], vocabulary), length
        self._sequences = (len(self._stream) - 1) // length
        self.labels, self.facts = split.labels, {"tokenizer": tokenizer}

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        for request in requests:
            places = request.indices * self._sequences // self.samples * self._length
            rows = [self._stream.read(place, request.view + 1) for place in places.tolist()]
            tokens = torch.from_numpy(np.stack(rows))
            yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), request.indices
