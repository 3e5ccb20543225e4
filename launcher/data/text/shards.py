"""Files of tokens as nanoGPT and modded-nanogpt write them, memory-mapped; nothing in them is unpickled or executed.

nanoGPT's are uint16 from the first byte on. Those of modded-nanogpt and llm.c have a header of 256 int32 (magic number,
version, count of tokens); theirs of Llama 3 have uint32.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launcher import atomic
from launcher.errors import Problem, UserError

_HEADER = 256
# By magic number: version, and type of a token.
_FORMATS: dict[int, tuple[int, np.dtype[Any]]] = {20240520: (1, np.dtype("<u2")), 20240801: (7, np.dtype("<u4"))}
_SPLITS = {"train": re.compile(r"train", re.I), "val": re.compile(r"val", re.I)}


def shards_in(folder: Path) -> dict[str, list[str]]:
    """Return the names of a folder's files of tokens by split, `train` and `val`, in order; empty without any."""
    names = sorted(path.name for path in folder.glob("*.bin")) if folder.is_dir() else []
    found = {split: [name for name in names if pattern.search(name)] for split, pattern in _SPLITS.items()}
    return found if any(found.values()) else {}


def open_shard(path: Path) -> np.ndarray:
    """Map the tokens of a file, uint16 or uint32 [N].

    Raises UserError if its length is not that of its header, or no whole number of tokens.
    """
    size = path.stat().st_size
    head = np.fromfile(path, "<i4", 3) if size >= 4 * _HEADER else np.zeros(3, np.int32)
    start, count, kind = 0, size // 2, _FORMATS[20240520][1]
    if int(head[0]) in _FORMATS:
        version, kind = _FORMATS[int(head[0])]
        start, count = 4 * _HEADER, int(head[2])
        if head[1] != version:
            raise _damaged(path, f"has version {head[1]} of its format, not {version}")
    if size != start + count * kind.itemsize:
        raise _damaged(path, f"has {size:,} bytes, but its {count:,} tokens need {start + count * kind.itemsize:,}")
    return np.memmap(path, kind, "r", start, count) if count else np.zeros(0, kind)


def write_shard(path: Path, tokens: np.ndarray, vocabulary: int) -> None:
    """Write a file of tokens with a header, atomically."""
    magic = next(one for one, (_, kind) in _FORMATS.items() if vocabulary <= 1 << 8 * kind.itemsize)
    version, kind = _FORMATS[magic]
    head = np.zeros(_HEADER, "<i4")
    head[:3] = magic, version, len(tokens)
    with atomic.writing(path) as temporary, temporary.open("wb") as file:
        file.write(head.tobytes())
        file.write(tokens.astype(kind).tobytes())


class Stream:
    """The tokens of several files, one after the other."""

    def __init__(self, files: Sequence[Path]):
        self._shards = [open_shard(file) for file in files]
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, count: int) -> np.ndarray:
        """Return tokens int64 [count] from a place on."""
        number = int(np.searchsorted(self._ends, start, side="right"))
        first = start - (int(self._ends[number - 1]) if number else 0)
        parts = [self._shards[number][first : first + count].astype(np.int64)]
        while missing := count - sum(map(len, parts)):
            number += 1
            parts.append(self._shards[number][:missing].astype(np.int64))
        return np.concatenate(parts)


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(Problem(f"{reason}; write the file again", "dataset.path", path))
