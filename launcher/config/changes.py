"""What may change when a run goes on: the place and manner of computing, and the future; never what was done."""

from __future__ import annotations

import hashlib
import json
from functools import cache

from launcher.config.keys import ADDED, REPLACED
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig

# Keys, and groups of keys (ending in a dot), that training so far did not depend on.
FREE = (
    "epochs",
    "target",
    "mlperf",
    "runs",
    "run_name",
    "eval_every",
    "eval_batch_size",
    "device_batch_size",
    "deterministic",
    "dataset.path",
    "dataloader.workers",
    "dataloader.prefetch",
    "checkpoint.",
    "nonfinite.",
    "launch.",
    "hardware.",
    "logger.",
)


def changed(before: RunConfig, after: RunConfig) -> list[str]:
    """Dotted keys whose values differ, in the schema's order."""
    first, second = dict(leaves(as_mapping(before))), dict(leaves(as_mapping(after)))
    return [key for key in dict.fromkeys([*first, *second]) if first.get(key) != second.get(key)]


def fingerprint(config: RunConfig) -> str:
    """SHA-256 of the values that training so far depends on: equal for all parts of one run.

    Keys that an older part of the run did not have count only where they say something else than what it did.
    """
    values = {key: value for key, value in leaves(as_mapping(config)) if not is_free(key)}
    values = {key: value for key, value in values.items() if key not in ADDED or ADDED[key][0] != value}
    for old, (new, words) in REPLACED.items():
        before = {today: word for word, today in words.items()}
        if values.get(new) in before:
            values[old] = before[values.pop(new)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@cache
def is_free(key: str) -> bool:
    """Whether a run may go on with another value of that key."""
    return any(key == free or (free.endswith(".") and key.startswith(free)) for free in FREE)
