"""Nested plain values by dotted key, and the names of where values come from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

DEFAULTS = "defaults"
COMMAND_LINE = "command line"


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each leaf; an empty mapping is a leaf."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def get(values: Any, key: str) -> Any:
    """The value of a dotted key, or None."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return None
        values = values[part]
    return values


def without(values: Mapping[str, Any], keys: Collection[str], prefix: str = "") -> dict[str, Any]:
    """The values without those of some dotted keys."""
    return {
        name: without(value, keys, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in values.items()
        if f"{prefix}{name}" not in keys
    }


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key: mappings merge, everything else replaces what stood there."""
    *parents, leaf = key.split(".")
    for parent in parents:
        below = values.get(parent)
        values[parent] = values = dict(below) if isinstance(below, Mapping) else {}
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            put(values, f"{leaf}.{name}", inner)
    else:
        values[leaf] = value
