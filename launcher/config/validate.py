"""Convert plain values to typed ones such as the run config; every mismatch becomes a problem with a remedy."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from launcher import paths
from launcher.config.keys import limited_to, line_instead, nearest_key, options_with, synonyms, takes
from launcher.config.layers import COMMAND_LINE, leaves
from launcher.config.schema import SWITCHED, RunConfig
from launcher.config.similar import nearest
from launcher.config.targets import DOTTED_NAME
from launcher.config.targets import KEY as TARGET
from launcher.errors import Problem, UserError, first_few

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_ABSENT = ("missing", "union_tag_not_found")
MISSING, NO_SUCH_KEY = "is missing", "no such key"
ON_OFF = ("on", "off")
_LARGEST = 2**63
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?")
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list such as [a,b]",
    "finite_number": "a finite number",
}
_MAPPINGS = ("dataclass_type", "dict_type", "model_attributes_type")
# Words of pydantic, and those of `train help`.
_WORDS = {
    "Input should be": "must be",
    "List should have": "must have",
    " after validation": "",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
Typed = TypeVar("Typed")
# note: building the run config's adapter takes 14 ms, and a study reads thousands of configs
adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def validate(values: Mapping[str, Any], origin: Callable[[str], str | None] = lambda key: None) -> RunConfig:
    """Return the typed config; `origin` maps a dotted key to its origin.

    Raises UserError with every invalid key.
    """
    return typed(RunConfig, values, origin)


def typed(kind: type[Typed], values: Any, origin: Callable[[str], str | None], prefix: str = "") -> Typed:
    """Convert values to a dataclass; `prefix` precedes their dotted keys, `origin` maps a key to its origin.

    Raises UserError with every invalid key.
    """
    if problems := [*_strange(values, prefix.removesuffix("."), origin)]:
        raise UserError(*problems)
    try:
        # note: strict types accept a mapping as a dataclass only in JSON
        typed_values: Typed = adapter(kind).validate_json(json.dumps(values, default=str, skipkeys=True))
        return typed_values
    except UserError as error:
        # note: of a `_target_`
        raise UserError(*(replace(one, origin=origin(one.key or "")) for one in error.problems)) from None
    except ValidationError as error:
        mismatches: dict[str, tuple[Any, list[str]]] = {}
        for details in error.errors(include_url=False):
            for key, value in _wrong(dict(details), values, lambda key: origin(f"{prefix}{key}")):
                expected = mismatches.setdefault(key, (value, []))[1]
                if (message := _message(kind, prefix, key, dict(details) | {"input": value})) not in expected:
                    expected.append(message)
    for key, (value, (first, *others)) in mismatches.items():
        path = f"{prefix}{key}".removesuffix(".")
        message = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        if _EXPECTED["string_type"] in message and any(
            type(one) in (bool, int, float) for one in [value, *_items(value)]
        ):
            message += "; quote it"
        if isinstance(value, str) and _NUMBER.fullmatch(value) and "number" in first:
            message += "; remove the quotes"
        problems.append(Problem(message, path, value, origin(path)))
    raise UserError(*problems)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strange(value: Any, key: str, origin: Callable[[str], str | None]) -> Iterator[Problem]:
    """Yield values that JSON or the arithmetic of a plan cannot represent."""
    if isinstance(value, Mapping | list):
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _strange(inner, f"{key}.{name}".removeprefix("."), origin)
    elif isinstance(value, int | float) and _LARGEST <= abs(value) < math.inf:
        yield Problem("is too large; the limit is 2^63", key, value, origin(key))
    elif _NO_TEXT.search(f"{key}{value}"):
        yield Problem("is not UTF-8 text; rename it", key, value, origin(key))


def _wrong(details: Mapping[str, Any], values: Any, origin: Callable[[str], str | None]) -> list[tuple[str, Any]]:
    """Return the dotted key and value of an error; of an unknown section those that are typed."""
    key, value = _located(details, values)
    is_section = details["type"] in _UNKNOWN and isinstance(value, Mapping) and origin(key) == COMMAND_LINE
    return [*leaves({key: value})] if is_section else [(key, value)]


def _located(details: Mapping[str, Any], values: Any) -> tuple[str, Any]:
    """Return the dotted key of an error, without pydantic's names of union members, and the value there."""
    location = (*details["loc"], *(("name",) if details["type"].startswith("union_tag") else ()))
    path: list[str] = []
    for number, part in enumerate(location, 1):
        items = enumerate(values if isinstance(values, list) else ())
        inner = values if isinstance(values, Mapping) else {at: one for at, one in items if isinstance(one, Mapping)}
        # note: the tag of a union stands before its keys, and may be the name of one of them
        if part == inner.get("name") and number < len(location):
            continue
        if part in inner:
            values = inner[part]
        elif details["type"] in _ABSENT and number == len(location):
            values = None
        else:
            continue
        path.append(str(part))
    return ".".join(path), values


def _no_such_key(kind: type, prefix: str, key: str, value: Any) -> str:
    files = [folder / key.replace(".", "/") for folder in paths.search_path()] if isinstance(value, Mapping) else []
    if own := next((file for path in files if (file := path.with_name(f"{path.name}.yaml")).is_file()), None):
        return f"{own} has no {TARGET}; write {TARGET}: {DOTTED_NAME}, or type code=FILE for its class"
    if (line := line_instead(key, value)) is not None:
        return f"{NO_SUCH_KEY}; {line}"
    like = nearest_key(key, kind)
    if like is None:
        verb = synonyms("verbs").get(key)
        return f"{NO_SUCH_KEY}; did you mean train {verb}?" if verb else NO_SUCH_KEY
    if like == key:
        having = options_with(key) if kind is RunConfig else []
        return f"{NO_SUCH_KEY} here; it is for {first_few(having)}" if having else NO_SUCH_KEY
    if like.rpartition(".")[0] in SWITCHED:
        switched = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else nearest(str(value), ON_OFF)
        return f"{NO_SUCH_KEY}; did you mean {prefix}{like}={switched or ON_OFF[0]}?"
    if kind is RunConfig and not takes(like, value):
        return f"{NO_SUCH_KEY}; did you mean {like}? see train help {like}"
    return f"{NO_SUCH_KEY}; did you mean {prefix}{like}?{limited_to(like) if kind is RunConfig else ''}"


def _message(schema: type, prefix: str, key: str, details: dict[str, Any]) -> str:
    """Translate one of pydantic's errors."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in _UNKNOWN:
        return _no_such_key(schema, prefix, key, details.get("input"))
    if kind in _ABSENT:
        return MISSING
    if kind == "union_tag_invalid":
        group = key.removesuffix(".name")
        if line := line_instead(group, context["tag"]):
            return f"no such {group}; {line}"
        return f"must be one of {context['expected_tags']}, or needs a package that provides it".replace("'", "")
    if kind == "literal_error":
        choices = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        like = nearest(str(details["input"]), choices)
        several = "one of " if len(choices) > 1 else ""
        return f"must be {several}{', '.join(choices)}" + (f"; did you mean {like}?" if like else "")
    if kind in _MAPPINGS:
        return f"must be a mapping of values; type {prefix}{key}.KEY=VALUE, see train help {prefix}{key}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}"
    if kind == "value_error":
        return str(context["error"])
    text = str(details["msg"])
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text
