"""Every dotted key that a run config can have, and the nearest valid name to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from launcher.config.schema import RunConfig

# Keys that older run folders lack, with the value that says what was computed then, and the options that have the key.
ADDED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "dataset.val_split": (None, ()),
    "dataset.skip_bad": (False, ()),
    "dataset.exif_orientation": (False, ()),
    "schedule.warmup_includes_peak": (False, ("constant", "cosine", "linear", "multi_step")),
    "schedule.counts_warmup": (False, ("cosine",)),
    "checkpoint.elsewhere": (None, ()),
    "launch.bind": ("off", ()),
    "launch.expandable_segments": (False, ()),
    "launch.warm_up": (False, ()),
    "algorithms.colout.order": ("before_resizing", ()),
}
# Keys that older run folders have, with today's key and its value for each of theirs.
REPLACED = {"optimizer.decay_norm_and_bias": ("optimizer.no_decay", {True: "none", False: "vectors"})}


@cache
def all_keys() -> tuple[str, ...]:
    """Dotted keys of the schema, every option of a group included, in the order of writing."""
    return tuple(dict.fromkeys(_walk(RunConfig, "")))


def _walk(schema: type, prefix: str) -> Iterator[str]:
    hints = get_type_hints(schema)
    for field in fields(schema):
        key = prefix + field.name
        yield key
        for option in _dataclasses(hints[field.name]):
            yield from _walk(option, key + ".")


def _dataclasses(hint: Any) -> list[type]:
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [found for part in get_args(hint) for found in _dataclasses(part)]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like a word, or None if none is close."""
    found = difflib.get_close_matches(word.lower(), list(choices), n=1, cutoff=0.5)
    return found[0] if found else None


def nearest_key(key: str) -> str | None:
    """The valid dotted key most like a wrong one: the same leaf elsewhere, a like sibling, or a like whole key."""
    if key in REPLACED:
        return REPLACED[key][0]
    keys = all_keys()
    parent, _, leaf = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == parent}
    leaves = {k.rpartition(".")[2]: k for k in reversed(keys)}
    if leaf in leaves:
        return leaves[leaf]
    if found := nearest(leaf, siblings):
        return siblings[found]
    if found := nearest(leaf, leaves):
        return leaves[found]
    return nearest(key, keys)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """` (did you mean X? one of: ...)`, ready to end a message."""
    choices = sorted(choices)
    found = nearest(word, choices)
    hint = f"did you mean {found}? " if found else ""
    return f"{hint}one of: {', '.join(choices)}"
