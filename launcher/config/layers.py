"""Nested plain values by dotted key, and their references `${key}` to each other."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from launcher.config.keys import nearest_key
from launcher.config.schema import GROUPS, SWITCHED
from launcher.errors import Problem, Problems, shown

DEFAULTS = "defaults"
COMMAND_LINE = "command line"

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
NOT_PLAIN = "cannot be resolved: a reference must be ${key}, with the key of another value"
# The longest text that a reference may insert.
_LONGEST = 1000
_ABSENT = object()


@dataclass(frozen=True)
class Layer:
    """One layer of the config: its origin, the values that it sets, and the options that it chooses by group.

    `path` is its file; `options` are the options of all groups that its values assume. `kind` is the folder of recipes/
    of values that change a recipe.
    """

    origin: str
    values: dict[str, Any]
    chosen: Mapping[str, Any] = field(default_factory=dict)
    path: Path = Path()
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""

    def sets(self, key: str) -> bool:
        """Return whether the layer sets a dotted key, or a key inside it."""
        group, _, rest = key.partition(".")
        return (rest == "name" and group in self.chosen) or get(self.values, key, _ABSENT) is not _ABSENT

    def used_with(self, options: Mapping[str, Any]) -> Self:
        """Return the layer without values of replaced options, and without null algorithms, which the overrides set."""
        replaced = {group for group in GROUPS if self.options.get(group) != options.get(group)}
        own = {f"{group}.{name}": value for group in SWITCHED for name, value in mapping(self.values, group).items()}
        nulls = {key for key, value in own.items() if value is None}
        return replace(self, values=without(self.values, replaced | nulls))


def mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping at a key; empty if another value is there."""
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of each leaf; an empty mapping is a leaf."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def get(values: Any, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key, or the default."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return default
        values = values[part]
    return values


def without(values: Mapping[str, Any], keys: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return the values without some dotted keys."""
    return {
        name: without(value, keys, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in values.items()
        if f"{prefix}{name}" not in keys
    }


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key: mappings merge, other values replace the previous one."""
    *parents, leaf = key.split(".")
    for parent in parents:
        below = values.get(parent)
        values[parent] = values = dict(below) if isinstance(below, Mapping) else {}
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            put(values, f"{leaf}.{name}", inner)
    else:
        values[leaf] = value


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all layers: those of later ones replace earlier ones, within mappings too."""
    values: dict[str, Any] = {}
    for key, value in (pair for layer in layers for pair in layer.items()):
        below = values.get(key)
        values[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return values


def is_plain(value: Any) -> bool:
    """Return whether all references of a value are to keys: `${oc.env:HOME}` would read the environment."""
    return "${" not in _REFERENCE.sub("", str(value))


def resolve(values: Mapping[str, Any], origin: Callable[[str], str], problems: Problems) -> dict[str, Any]:
    """Replace references by the values of their keys; add a problem for each invalid reference."""

    def resolved(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return {name: resolved(inner, f"{key}.{name}") for name, inner in value.items()}
        if isinstance(value, list):
            return [resolved(part, key) for part in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            if whole := _REFERENCE.fullmatch(value):
                return _referred(whole[1], values)
            return _REFERENCE.sub(lambda part: str(_referred(part[1], values)), value)
        except ValueError as error:
            problems.append(Problem(f"cannot be resolved: {error}", key, value, origin(key)))
            return value

    return {name: resolved(value, name) for name, value in values.items()}


def _referred(key: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a reference's key; it must not be a reference, so that references neither grow nor loop.

    Raises ValueError if the reference is invalid.
    """
    value = get(values, key, missing := object())
    if value is missing:
        nearest = nearest_key(key)
        raise ValueError(
            f"{shown(key)} is not a key{f'; did you mean {nearest}?' if nearest not in (None, key) else ''}"
        )
    if isinstance(value, Mapping):
        raise ValueError(f"{shown(key)} is a mapping; reference one of its values")
    if "${" in str(value):
        raise ValueError(f"{shown(key)} is a reference itself; reference its target directly")
    if len(str(value)) > _LONGEST:
        raise ValueError(f"{shown(key)} has more than {_LONGEST} characters")
    return value
