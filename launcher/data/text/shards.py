"""Files of tokens as other programs write them, memory-mapped; nothing in them is unpickled or executed.

nanoGPT's have no header: uint16, or uint32 for a vocabulary above 65,536. Those of modded-nanogpt and llm.c have a
header of 256 int32 (magic number, version, count of tokens); theirs of Llama 3 have uint32. Beside those of Megatron
and fairseq lies an index, `.idx`, with the type of a token.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from launcher.data.dropped import Drops, drop
from launcher.data.listing import is_file, is_ignored
from launcher.data.text.names import split_of, unread, validation_among
from launcher.data.workers import Report
from launcher.errors import Problem, UserError
from launcher.files import atomic
from launcher.files.cache import cached

_HEADER = 256
_NARROW = 1 << 16  # tokens of uint16
# By magic number: version, and type of a token.
_FORMATS: dict[int, tuple[int, np.dtype[Any]]] = {20240520: (1, np.dtype("<u2")), 20240801: (7, np.dtype("<u4"))}
# Of an index: magic, version, code of the type, counts of sequences and documents.
_INDEX, _INDEX_START = struct.Struct("<9sQBQQ"), (b"MMIDIDX\0\0", 1)
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_PIECE = 1 << 24  # tokens


class Range(NamedTuple):
    """The lowest and the highest token, and whether every second one is 0."""

    lowest: int
    highest: int
    is_wider: bool


def shards_in(folder: Path) -> tuple[dict[str, list[str]], Drops]:
    """Return the names of a folder's files of tokens by split, `train` and `val`, and what is not read of them.

    Both are empty if no name has a split; raises UserError if one has two.
    """
    paths = sorted(folder.glob("*.bin")) if folder.is_dir() else []
    present = [path for path in paths if is_file(path) and not is_ignored(path.name)]
    splits = {path.name: split_of(path, folder) for path in present}
    held_out, drops = validation_among(splits.values()), Drops()
    if held_out is None and "train" not in splits.values():
        return {}, drops
    names = {"train": "train", "val": held_out}
    for name, split in splits.items():
        if split not in names.values() or split is None:
            drop(drops, unread("tokens", split), name)
    return {key: [name for name, split in splits.items() if split and split == names[key]] for key in names}, drops


def open_shard(path: Path, vocabulary: int | None) -> np.ndarray:
    """Map the integers of a file [N]; the vocabulary is the type of those without header and index.

    Raises UserError if its length is not that of its header or index, or no whole number of tokens.
    """
    size, start, index = path.stat().st_size, 0, path.with_suffix(".idx")
    head = np.fromfile(path, "<i4", 3) if size >= 4 * _HEADER else np.zeros(3, np.int32)
    if int(head[0]) in _FORMATS:
        version, kind = _FORMATS[int(head[0])]
        start, count = 4 * _HEADER, int(head[2])
        if head[1] != version:
            raise _damaged(path, f"has version {head[1]} of its format, not {version}")
    elif index.is_file():
        kind, count = _indexed(index)
    else:
        kind = np.dtype("<u4" if (vocabulary or 0) > _NARROW else "<u2")
        count = size // kind.itemsize
    if size != start + count * kind.itemsize:
        needed = f"its {count:,} tokens of {kind.name} need {start + count * kind.itemsize:,}"
        raise _damaged(path, f"has {size:,} bytes, but {needed}")
    return np.memmap(path, kind, "r", start, count) if count else np.zeros(0, kind)


def _indexed(index: Path) -> tuple[np.dtype[Any], int]:
    """Return the type and count of tokens by an index; raises UserError if it has none of integers."""
    with index.open("rb") as file:
        head = file.read(_INDEX.size)
        fields = _INDEX.unpack(head) if len(head) == _INDEX.size else (b"",) * 5
        if fields[:2] != _INDEX_START or fields[2] not in _CODES:
            raise _damaged(index, "is no index of Megatron (MMIDIDX, version 1) of integers up to int64")
        kind, sequences = np.dtype(_CODES[fields[2]]), fields[3]
        if not sequences:
            return kind, 0
        file.seek(_INDEX.size + 4 * (sequences - 1))
        length = file.read(4)
        file.seek(_INDEX.size + 4 * sequences + 8 * (sequences - 1))
        if len(place := file.read(8)) != 8:
            raise _damaged(index, f"ends before its {sequences:,} sequences")
    return kind, int.from_bytes(place, "little") // kind.itemsize + int.from_bytes(length, "little")


def check_shard(path: Path, vocabulary: int, report: Report) -> None:
    """Read all tokens of a file, unless it was read before; raises UserError if one is not in the vocabulary."""
    shard, facts = open_shard(path, vocabulary), path.stat()
    # note: plans, runs and resumed runs read the same files
    known = [str(path.resolve()), facts.st_size, facts.st_mtime_ns, shard.dtype.str]
    lowest, highest, is_wider = cached("tokens", known, Range, lambda: _range_of(shard, report))
    name, has_no_type = shard.dtype.name, shard.nbytes == facts.st_size and not path.with_suffix(".idx").is_file()
    if is_wider and has_no_type:
        reason = f"is no file of {name}, since every second token is 0, as in one of wider integers"
        raise UserError(Problem(f"{reason}; write {name}, or llm.c's header", "dataset.path", path))
    if highest >= vocabulary and has_no_type and vocabulary > _NARROW:
        message = f"{path} has the token {highest:,}, read as {name} for a vocabulary above {_NARROW:,}"
        raise UserError(Problem(f"{message}; write {name}, or set the right size", "dataset.classes", vocabulary))
    if highest >= vocabulary:
        message = f"{path} has the token {highest:,}; set dataset.classes={highest + 1}"
        raise UserError(Problem(message, "dataset.classes", vocabulary))
    if lowest < 0:
        raise _damaged(path, f"has the token {lowest:,}, which no vocabulary has")


def _range_of(shard: np.ndarray, report: Report) -> Range:
    lowest, highest, is_wider = 0, 0, True
    for start in range(0, len(shard), _PIECE):
        report("checking tokens", start, len(shard))
        piece = shard[start : start + _PIECE]
        lowest, highest = min(lowest, int(piece.min())), max(highest, int(piece.max()))
        is_wider = is_wider and not piece[1::2].any()
    return Range(lowest, highest, is_wider and highest > 0)


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

    def __init__(self, files: Sequence[Path], vocabulary: int | None):
        self._shards = [open_shard(file, vocabulary) for file in files]
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
