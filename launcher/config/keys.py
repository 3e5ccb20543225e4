"""Which keys there are, what each can hold, and the nearest one to a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from launcher.config.fields import AnyPath, Within
from launcher.config.schema import RunConfig


def options(hint: Any) -> list[type]:
    """The dataclasses that a field may hold."""
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [] if get_origin(hint) is list else [found for part in get_args(hint) for found in options(part)]


def choices(key: str) -> list[str]:
    """The words among which a dotted key's value is chosen; empty where it is a number or text."""
    return list(dict.fromkeys(word for hint in _types(RunConfig, key) for word in _choices(hint)))


def is_text(schema: type, key: str) -> bool:
    """Whether the values of a dotted key are nothing but text: a name, path, duration, one of several words."""
    found = _types(schema, key)
    return bool(found) and all(map(_is_text, found))


def longest_share(key: str) -> float | None:
    """The part of the run to which `schedule.fit=on` shortens a dotted key's durations; None: it holds none."""
    shares = [_share(part) for hint in _types(RunConfig, key) for part in (hint, *get_args(hint))]
    return next((share for share in shares if share is not None), None)


def path_keys() -> list[str]:
    """Dotted keys of a run's config whose values are paths."""
    return [key for key in all_keys() if any(AnyPath in (hint, *get_args(hint)) for hint in _types(RunConfig, key))]


def _share(hint: Any) -> float | None:
    return next((extra.share for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Within)), None)


def _is_text(hint: Any) -> bool:
    alternatives = [part for part in _alternatives(hint) if part is not NoneType]
    return bool(alternatives) and all(
        part is str or (get_origin(part) is Literal and all(isinstance(word, str) for word in get_args(part)))
        for part in alternatives
    )


def _alternatives(hint: Any) -> list[Any]:
    """The types that a value may have, without their bounds."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _alternatives(parts[0])
    return [inner for part in parts for inner in _alternatives(part)] if origin in (Union, UnionType) else [hint]


def _types(schema: type, key: str) -> list[Any]:
    """The types of a dotted key, of which a group's options may have several; none for a group or no key."""
    name, _, rest = key.partition(".")
    hint = _hints(schema).get(name)
    if inner := options(hint):
        return [found for option in inner for found in _types(option, rest)]
    return [] if rest or hint is None else [hint]


@cache
def _hints(schema: type) -> dict[str, Any]:
    hints = get_type_hints(schema, include_extras=True)
    return {field.name: hints[field.name] for field in fields(schema)}


def _choices(hint: Any) -> Iterator[str]:
    for part in _alternatives(hint):
        if get_origin(part) is Literal:
            yield from map(str, get_args(part))
        else:
            yield from {bool: ("true", "false"), NoneType: ("null",)}.get(part, ())


@cache
def all_keys(schema: type = RunConfig) -> tuple[str, ...]:
    """Dotted keys of a schema, every option of a group included, in the order of writing."""
    return tuple(dict.fromkeys(_all_keys(schema, "")))


def _all_keys(schema: type, prefix: str) -> Iterator[str]:
    for name, hint in _hints(schema).items():
        yield prefix + name
        for option in options(hint):
            yield from _all_keys(option, f"{prefix}{name}.")


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like a word, or None if none is close."""
    found = difflib.get_close_matches(word.lower(), list(choices), n=1, cutoff=0.5)
    return found[0] if found else None


def nearest_key(key: str, schema: type = RunConfig) -> str | None:
    """The valid dotted key most like a wrong one: the same leaf elsewhere, a like sibling, or a like whole key."""
    keys = all_keys(schema)
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
