"""Nested plain values by dotted key, their references `${key}` to each other, and the names of where they come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from launcher.config.keys import nearest_key
from launcher.errors import Problem, Problems, UserError, shown

DEFAULTS = "defaults"
COMMAND_LINE = "command line"

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
NOT_PLAIN = "cannot be resolved: a reference is ${key}, the key of another value, and nothing else"
# A text grows with every reference in it, and each of them may do so again.
_MOST_STEPS = 1000
_DEEPEST = 10


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


def is_plain(value: Any) -> bool:
    """Whether a value has no references but those to keys: `${oc.env:HOME}` would read the machine."""
    return all("${" not in _REFERENCE.sub("", text) for text in _texts(value))


def resolve(values: dict[str, Any], origin: Callable[[str], str | None], problems: Problems) -> dict[str, Any]:
    """The values with others in the place of references; a problem for each that leads nowhere."""
    referring = {key: value for key, value in leaves(values) if any("${" in text for text in _texts(value))}
    if not referring:
        return values
    for key, value in referring.items():
        try:
            _count(values, value, 1)
        except ValueError as error:
            problems.append(Problem(f"cannot be resolved: {error}", key, value, origin(key)))
    problems.settle()
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"a reference cannot be resolved: {' '.join(str(error).split())}") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _count(values: Mapping[str, Any], value: Any, depth: int) -> int:
    """How many references are followed to resolve a value.

    Raises:
        ValueError: it cannot be, or takes too many; says why.
    """
    if not is_plain(value):
        raise ValueError(NOT_PLAIN.partition(": ")[2])
    if depth > _DEEPEST:
        raise ValueError(f"it leads back to itself, or over more than {_DEEPEST} others")
    steps = 0
    for key in (key for text in _texts(value) for key in _REFERENCE.findall(text)):
        parent, _, leaf = key.rpartition(".")
        within = get(values, parent) if parent else values
        if not isinstance(within, Mapping) or leaf not in within:
            nearest = nearest_key(key)
            hint = f"; did you mean {nearest}?" if nearest and nearest != key else ""
            raise ValueError(f"{shown(key)} is no key{hint}")
        if isinstance(within[leaf], Mapping):
            raise ValueError(f"{shown(key)} is a mapping; name one of its values")
        steps += 1 + _count(values, within[leaf], depth + 1)
        if steps > _MOST_STEPS:
            raise ValueError(f"it takes more than {_MOST_STEPS} others")
    return steps


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
