"""Random numbers as pure functions: each is a hash of (seed, purpose, counters), without generator state.

So the data stream does not depend on the number of workers or ranks, a resume replays nothing, and checkpoints
contain no generator state.
"""

import zlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """Apply the finaliser of SplitMix64 (Steele et al. 2014), elementwise on uint64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return np.asarray(x ^ (x >> np.uint64(31)))


@lru_cache(maxsize=1024)
def key(seed: int, purpose: str, *counters: int) -> int:
    """Return a 64-bit key of (seed, purpose, counters), the same on every machine."""
    state = np.array([seed & (2**64 - 1)], dtype=np.uint64)
    for word in (zlib.crc32(purpose.encode()), *counters):
        state = _mix(state * _GOLDEN + np.uint64(word & (2**64 - 1)) + _GOLDEN)
    return int(state[0])


def uniforms(seed: int, purpose: str, epoch: int, indices: np.ndarray, draws: int) -> np.ndarray:
    """Return uniform numbers in [0, 1) of shape [len(indices), draws], one row per sample.

    A row depends only on (seed, purpose, epoch, sample index), not on its position in the batch.
    """
    base = np.uint64(key(seed, purpose, epoch))
    rows = _mix(base + np.asarray(indices).astype(np.uint64) * _GOLDEN)
    cells = _mix(rows[:, None] + np.arange(1, draws + 1, dtype=np.uint64) * _GOLDEN)
    return (cells >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generators(seed: int, purpose: str, epoch: int, indices: np.ndarray) -> Iterator[np.random.Generator]:
    """Yield the `generator` of (seed, purpose, epoch, index) for each sample index [N]; the next one ends the last.

    All keys are computed at once, and one generator changes its key, which takes a third of the time of new ones.
    """
    start = np.array([key(seed, purpose, epoch)], dtype=np.uint64)
    keys = _mix(start * _GOLDEN + np.asarray(indices).astype(np.uint64) + _GOLDEN)
    bits = np.random.Philox(key=0)
    fresh, random = bits.state, np.random.Generator(bits)
    for one in keys:
        fresh["state"]["key"][0] = one
        bits.state = fresh
        yield random


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return a NumPy generator of one (seed, purpose, counters), such as for the permutation of an epoch."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *counters)))
