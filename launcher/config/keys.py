"""All keys of the config, their types, and the key nearest to a word."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from launcher.config import code
from launcher.config.fields import AnyPath, Role, Within
from launcher.config.options import Group
from launcher.config.rented import rows
from launcher.config.schema import RunConfig
from launcher.config.similar import ALIKE, ALMOST_EQUAL, nearest
from launcher.config.yaml_file import read_mapping
from launcher.errors import UserError, first_few, shown
from launcher.paths import CONF

_SYNONYMS = Path(__file__).with_name("synonyms.yaml")


def group_of(hint: Any) -> Group | None:
    """Return the group whose options a field holds; None for another field."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Group)), None)


def options(hint: Any) -> list[type[Any]]:
    """Return the dataclasses among a field's types, or those of its group's options."""
    if group := group_of(hint):
        return list(dict.fromkeys(group.declarations().values()))
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [] if get_origin(hint) is list else [kind for part in get_args(hint) for kind in options(part)]


@cache
def hints(schema: type) -> dict[str, Any]:
    """Return the types of a schema's fields, with their bounds and without their roles."""
    return {name: _without_roles(hint) for name, hint in get_type_hints(schema, include_extras=True).items()}


def _without_roles(hint: Any) -> Any:
    extras = [one for one in getattr(hint, "__metadata__", ()) if not isinstance(one, Role)]
    if len(extras) == len(getattr(hint, "__metadata__", ())):
        return hint
    kind = get_args(hint)[0]
    return Annotated[kind, *extras] if extras else kind


def kinds(group: str) -> list[type[Any]]:
    """Return the classes of values of a group's options."""
    return options(hints(RunConfig)[group])


def options_with(key: str) -> list[str]:
    """Return the options whose values have a dotted key, such as `loss=bce` for loss.pos_weight."""
    group, _, name = key.partition(".")
    return [f"{group}={option}" for option, kind in _declared(group) if name in all_keys(kind)]


def _declared(group: str) -> list[tuple[str, type]]:
    """Return the options of a group with the classes of their values; none for a section."""
    found = group_of(hints(RunConfig)[group])
    return [*found.declarations().items()] if found and found.many is None else []


def limited_to(key: str) -> str:
    """Return ` it is for optimizer=adamw, ...` for a key of few options of a group; empty for other keys."""
    group, _, name = key.partition(".")
    having = options_with(key) if name and "." not in name else []
    return f" it is for {first_few(having)}" if having and 2 * len(having) < len(_declared(group)) else ""


def takes_target(group: str) -> bool:
    """Return whether an option of a group may have a `_target_`."""
    found = group_of(hints(RunConfig)[group])
    return found is not None and found.target is not None


def choices(key: str) -> list[str]:
    """Return the choices of a dotted key; empty for numbers and text."""
    words = {bool: ("true", "false"), NoneType: ("null",)}
    parts = _plain_types(RunConfig, key)
    by_part = [get_args(part) if get_origin(part) is Literal else words.get(part, ()) for part in parts]
    return list(dict.fromkeys(str(word) for values in by_part for word in values))


def is_text(schema: type, key: str) -> bool:
    """Return whether all values of a dotted key are text, such as a name, path, duration or choice, or lists of it."""
    parts = [part for part in _plain_types(schema, key) if part is not NoneType]
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    only_text = all(part in (str, list[str]) or get_origin(part) is Literal for part in parts)
    return bool(parts) and only_text and all(isinstance(word, str) for word in words)


def lists_text(schema: type, key: str) -> bool:
    """Return whether a dotted key takes lists of text."""
    return list[str] in _plain_types(schema, key)


def is_whole(key: str) -> bool:
    """Return whether all numbers that a dotted key takes are whole."""
    parts = _plain_types(RunConfig, key)
    return int in parts and float not in parts


def longest_fraction(key: str) -> float | None:
    """Return the fraction of the run to which `schedule.fit=on` shortens a key's durations; None if it has none."""
    parts = [part for hint in _types(RunConfig, key) for part in (hint, *get_args(hint))]
    extras = [extra for part in parts for extra in getattr(part, "__metadata__", ()) if isinstance(extra, Within)]
    return extras[0].fraction if extras else None


@cache
def with_role(role: Role) -> tuple[str, ...]:
    """Return the keys of a run's config with an annotation, and the sections with all their keys, ending in a dot."""
    return tuple(_with_role(RunConfig, role))


def _with_role(schema: type, role: Role, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(schema, include_extras=True).items():
        key, extras = f"{prefix}{name}", getattr(hint, "__metadata__", ())
        kind = get_args(hint)[0] if extras else hint
        group = group_of(hint)
        is_section = is_dataclass(kind) or (group is not None and group.many is not None)
        of_role = [one for one in extras if isinstance(one, Role) and one.of == role.of]
        for one in of_role:
            yield from [f"{key}.{inner}" for inner in one.keys] or [f"{key}." if is_section else key]
        if not of_role and is_dataclass(kind) and isinstance(kind, type):
            yield from _with_role(kind, role, f"{key}.")


def path_keys() -> list[str]:
    """Return the dotted keys of a run's config whose values are paths."""
    return [key for key in all_keys() if any(AnyPath in (hint, *get_args(hint)) for hint in _types(RunConfig, key))]


def _plain_types(schema: type, key: str) -> list[Any]:
    """Return the types of a dotted key's values, without their bounds."""
    return [part for hint in _types(schema, key) for part in _alternatives(hint)]


def _alternatives(hint: Any) -> list[Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _alternatives(parts[0])
    return [inner for part in parts for inner in _alternatives(part)] if origin in (Union, UnionType) else [hint]


def _types(schema: type, key: str) -> list[Any]:
    """Return the types of a dotted key; empty for a group, and for no key."""
    head = key.partition(".")[0]
    return _types_of(schema, head, tuple(code.available())).get(key, []) if head in hints(schema) else []


@cache
def _types_of(schema: type, name: str, own: tuple[code.Own, ...]) -> dict[str, list[Any]]:
    """Return the types of all dotted keys of a field, for every option of a group, in schema order; a group has none.

    Imports the options of this field alone.
    """
    hint = hints(schema)[name]
    inner: list[tuple[str, Any]] = [(name, option) for option in options(hint)]
    if (group := group_of(hint)) and group.many:
        inner = [(f"{name}.{option}", kind) for option, kind in group.declarations().items()]
    types: dict[str, list[Any]] = {name: [] if inner else [hint]}
    for prefix, kind in inner:
        types.setdefault(prefix, [])
        for field in fields(kind):
            for key, inner_types in _types_of(kind, field.name, own).items():
                types.setdefault(f"{prefix}.{key}", []).extend(inner_types)
    return types


def all_keys(schema: type = RunConfig) -> tuple[str, ...]:
    """Return the dotted keys of a schema, for every option of a group, in schema order."""
    own = tuple(code.available())
    return tuple(key for field in fields(schema) for key in _types_of(schema, field.name, own))


@cache
def synonyms(kind: Literal["verbs", "keys"]) -> dict[str, str]:
    """Return other tools' words for the verbs, or the dotted keys, that mean the same."""
    return dict(_synonyms()[kind])


@cache
def lines() -> dict[str, dict[str, str]]:
    """Return other tools' words with what to type for a value, `number`, `list` or `any`."""
    return dict(_synonyms()["lines"])


@cache
def _synonyms() -> dict[str, Any]:
    return read_mapping(_SYNONYMS)


def line_instead(word: str, value: Any) -> str | None:
    """Return what to type for a word of another tool with a value that no key here takes as it is; None without one."""
    by_value = lines().get(word) or lines().get(word.rpartition(".")[2], {})
    text = shown(value).lower()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kinds = [text, *(["number"] if is_number else []), *(["list"] if isinstance(value, list) else []), "any"]
    line = next((by_value[kind] for kind in kinds if kind in by_value), None)
    if line is None:
        return None
    items = value if isinstance(value, list) else [value]
    line = re.sub(r"\{(\d)\}", lambda at: shown(items[int(at[1])]) if int(at[1]) < len(items) else "VALUE", line)
    line = re.sub(r"\{(\w+\.\w+)\}", lambda key: first_few(options_with(key[1])), line)
    return line.replace("{value}", shown(value))


def takes(key: str, value: Any) -> bool:
    """Return whether a dotted key takes a value, or a group has an option of this name."""
    hints = _types(RunConfig, key)
    if not hints:
        # note: a word may be too long for the name of a file
        return not isinstance(value, bool | int | float) and str(value) in {
            *(path.stem for path in (CONF / key).glob("*.yaml")),
            *rows(key),
        }
    for hint in hints:
        with suppress(ValidationError, UserError):
            TypeAdapter(hint).validate_json(json.dumps(value, default=str))
            return True
    return False


def nearest_key(key: str, schema: type = RunConfig) -> str | None:
    """Return the valid key nearest to a wrong one; None if none is close.

    In this order: another tool's word for a key, the same leaf elsewhere, a similar sibling, an almost equal leaf or
    whole key.
    """
    keys = all_keys(schema)
    parent, _, leaf = key.rpartition(".")
    siblings = {known.rpartition(".")[2]: known for known in keys if known.rpartition(".")[0] == parent}
    leaves = {known.rpartition(".")[2]: known for known in reversed(keys)}
    leaves |= {word: known for word, known in synonyms("keys").items() if known in keys}
    if leaf in leaves:
        return leaves[leaf]
    for by_word, most in ((siblings, ALIKE), (leaves, ALMOST_EQUAL)):
        if like := nearest(leaf, by_word, most):
            return by_word[like]
    return nearest(key, keys, ALMOST_EQUAL)
