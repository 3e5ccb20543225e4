"""Plain values to the typed run config; every mismatch becomes a problem that says what to do."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from launcher.config.keys import nearest, nearest_key
from launcher.config.layers import get, leaves
from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError

MISSING = "is missing"
ON_OFF = ("on", "off")
_LARGEST = 2**63
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list such as [a,b]",
    "dataclass_type": "a mapping of values",
    "model_attributes_type": "a mapping of values",
    "finite_number": "a finite number",
}


def validate(values: Mapping[str, Any], origin: Callable[[str], str | None] = lambda key: None) -> RunConfig:
    """The typed config; `origin` says where a dotted key came from.

    Raises:
        UserError: with every key that does not fit.
    """
    if strange := [*_strange(values, origin)]:
        raise UserError(*strange)
    try:
        # note: strict types accept a mapping as a dataclass only in JSON
        return adapter().validate_json(json.dumps(values, default=str, skipkeys=True))
    except ValidationError as error:
        expectations: dict[str, list[str]] = {}
        for details in error.errors(include_url=False):
            key = _dotted(details["loc"], values, details["type"] == "missing")
            key += ".name" * (details["type"] == "union_tag_invalid")
            expected = message(key, dict(details))
            if expected not in expectations.setdefault(key, []):
                expectations[key].append(expected)
    told = expectations.items()
    raise UserError(*(Problem(_joined(said), key, get(values, key), origin(key)) for key, said in told))


def _strange(values: Mapping[str, Any], origin: Callable[[str], str | None]) -> Iterator[Problem]:
    """What no value can be, and what neither JSON nor the arithmetic of a plan could take."""
    for key, value in leaves(values):
        for part in (key, *_flat(value)):
            if isinstance(part, int | float) and _LARGEST <= abs(part) < math.inf:
                yield Problem("is larger than any number here", key, value, origin(key))
            if isinstance(part, str) and _NO_TEXT.search(part):
                no_text = "holds bytes that are no UTF-8 text; give it another name"
                yield Problem(no_text, key, value, origin(key))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield name
            yield from _flat(part)
    else:
        yield value


@cache
def adapter() -> TypeAdapter[RunConfig]:
    return TypeAdapter(RunConfig)


def _joined(messages: list[str]) -> str:
    """Alternatives of a union in one sentence."""
    first, *others = messages
    return " or ".join([first, *(other.removeprefix("must be ") for other in others)])


def _dotted(location: tuple[int | str, ...], values: Any, missing: bool) -> str:
    """The dotted key of an error's location, without the names that unions put into it."""
    path: list[str] = []
    for number, part in enumerate(location, 1):
        # note: the tag of a union stands before its keys, and may be the name of one of them
        if isinstance(values, Mapping) and part == values.get("name") and number < len(location):
            continue
        if isinstance(values, Mapping) and part in values:
            values = values[part]
            path.append(str(part))
        elif missing and number == len(location):
            path.append(str(part))
    return ".".join(path)


def _no_such_key(key: str, value: Any) -> str:
    found = nearest_key(key)
    if found is None or found == key:
        return "no such key"
    if found.rpartition(".")[0] == "algorithms":
        switched = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else nearest(str(value), ON_OFF)
        found += f"={switched or ON_OFF[0]}"
    return f"no such key; did you mean {found}?"


def message(key: str, details: dict[str, Any]) -> str:
    """What to say of one of pydantic's errors."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return _no_such_key(key, details.get("input"))
    if kind == "missing":
        return MISSING
    if kind == "union_tag_invalid":
        return f"no installed package provides this; one of {context['expected_tags']}".replace("'", "")
    if kind == "literal_error":
        choices = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        found = nearest(str(details["input"]), choices)
        return f"must be one of {', '.join(choices)}" + (f"; did you mean {found}?" if found else "")
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}"
    if kind == "value_error":
        return str(context["error"])
    return (
        str(details["msg"])
        .replace("Input should be", "must be")
        .replace("List should have", "must have")
        .replace(" after validation", "")
    )
