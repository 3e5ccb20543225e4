"""Plain values to the typed run config; every mismatch becomes a problem that says what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from launcher.config.keys import nearest, nearest_key
from launcher.config.layers import Layers
from launcher.config.schema import RunConfig
from launcher.errors import Problem

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


def validate(layers: Layers) -> tuple[RunConfig | None, list[Problem]]:
    """The typed config, or None and a problem for each key that does not fit."""
    try:
        # note: strict types accept a mapping as a dataclass only in JSON
        return _adapter().validate_json(json.dumps(layers.values, default=str, skipkeys=True)), []
    except ValidationError as error:
        expectations: dict[str, list[str]] = {}
        for details in error.errors(include_url=False):
            key = _dotted(details["loc"], layers.values, details["type"] == "missing")
            message = _message(key, dict(details))
            if message not in expectations.setdefault(key, []):
                expectations[key].append(message)
    problems = []
    for key, messages in expectations.items():
        problems.append(Problem(_joined(messages), key, layers.get(key), layers.origin(key)))
    return None, problems


@cache
def _adapter() -> TypeAdapter[RunConfig]:
    return TypeAdapter(RunConfig)


def _joined(messages: list[str]) -> str:
    """Alternatives of a union in one sentence."""
    first, *others = messages
    return " or ".join([first, *(other.removeprefix("must be ") for other in others)])


def _dotted(location: tuple[int | str, ...], values: Any, missing: bool) -> str:
    """The dotted key of an error's location, without the names that unions put into it."""
    path: list[str] = []
    for number, part in enumerate(location, 1):
        if isinstance(values, Mapping) and part in values:
            values = values[part]
            path.append(str(part))
        elif missing and number == len(location):
            path.append(str(part))
    return ".".join(path)


def _message(key: str, details: dict[str, Any]) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        found = nearest_key(key)
        return "no such key" + (f"; did you mean {found}?" if found and found != key else "")
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        choices = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        found = nearest(str(details["input"]), choices)
        return f"must be one of {', '.join(choices)}" + (f"; did you mean {found}?" if found else "")
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}"
    if kind == "value_error":
        return str(context["error"])
    return str(details["msg"]).replace("Input should be", "must be").replace("List should have", "must have")
