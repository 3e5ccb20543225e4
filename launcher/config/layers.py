"""Values laid over one another, each leaf remembering the layer that set it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

DEFAULTS = "defaults"
COMMAND_LINE = "command line"


class Layers:
    """A nested mapping of plain values, and for each dotted leaf the name of the layer it came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def merge(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        """Lay a nested mapping over the values: mappings merge, everything else replaces."""
        for name, value in values.items():
            key = f"{prefix}{name}"
            if isinstance(value, Mapping) and value and isinstance(self.get(key), dict):
                self.merge(value, origin, key + ".")
            else:
                self.set(key, value, origin)

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set one dotted key, replacing whatever stood there.

        Raises:
            KeyError: a parent of the key holds a plain value; its argument is the parent's key.
        """
        *parents, leaf = key.split(".")
        node = self.values
        for depth, parent in enumerate(parents, 1):
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise KeyError(".".join(parents[:depth]))
            node = child
        self._forget(key, node.get(leaf))
        node[leaf] = copy.deepcopy(value)
        for dotted, _ in leaves({leaf: value}):
            self.origins[".".join([*parents, dotted])] = origin

    def get(self, key: str) -> Any:
        """The value of a dotted key, or None."""
        node: Any = self.values
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return None
            node = node[part]
        return node

    def remove(self, key: str) -> None:
        """Take a dotted key away, if it is there."""
        *parents, leaf = key.split(".")
        node = self.get(".".join(parents)) if parents else self.values
        if isinstance(node, dict):
            self._forget(key, node.pop(leaf, None))

    def origin(self, key: str) -> str | None:
        """The layer that set a key, or for a mapping the last that set something in it."""
        if key in self.origins:
            return self.origins[key]
        below = [origin for dotted, origin in self.origins.items() if dotted.startswith(key + ".")]
        return below[-1] if below else None

    def _forget(self, key: str, value: Any) -> None:
        self.origins.pop(key, None)
        if isinstance(value, Mapping):
            for dotted in [k for k in self.origins if k.startswith(key + ".")]:
                del self.origins[dotted]


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each leaf; an empty mapping is a leaf."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
