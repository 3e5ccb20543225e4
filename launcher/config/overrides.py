"""Words of the command line to assignments: Hydra's override grammar for lists, numbers and mappings, text as it is."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from launcher.config.keys import described, text_keys
from launcher.config.layers import COMMAND_LINE
from launcher.config.schema import GROUPS, RunConfig
from launcher.errors import Problem, shown

OFF = "off"
NULL = "null"

_LONGEST = 10_000
_DEEPEST = 10
_KEY_SEPARATOR = re.compile(r"[./]")
_OFF_WORD = re.compile(r"~algorithms[./](\w+)(=.*)?")


@dataclass(frozen=True)
class Assignment:
    """`key=value` as typed; a deletion `~algorithms.X` is `algorithms.X=off`."""

    key: str
    value: Any


def parse(words: Sequence[str], texts: Collection[str] | None = None) -> tuple[list[Assignment], list[Problem]]:
    """Assignments in the order of typing, and a problem for each word that is none.

    The value of a key in `texts` (those of a run's config, if None) is the text as it stands, but for `null` and for
    quotes around all of it.
    """
    texts = _texts() if texts is None else texts
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    for word in words:
        found = _assignment(word, texts)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            assignments.append(found)
    return assignments, problems


@cache
def _texts() -> frozenset[str]:
    return text_keys(RunConfig) | set(GROUPS)


def word_of(key: str, text: str) -> str:
    """The word that gives a text key this very text."""
    if text == NULL or quoted(text) is not None:
        text = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"{key}={text}"


def _assignment(word: str, texts: Collection[str]) -> Assignment | Problem:
    name, equals, text = word.partition("=")
    key = name.lstrip("+").replace("/", ".")
    if off := _OFF_WORD.fullmatch(word):
        return Assignment(f"algorithms.{off[1]}", OFF)
    if name.startswith("~"):
        return Problem(f"{shown(word)}: ~ turns a method off, such as ~algorithms.mixup")
    if not equals:
        return Problem(f"{shown(word)} is no verb and no key=value; `train --help` lists the verbs")
    if not key:
        return Problem(f"{shown(word)} has no key before its =; write key=value")
    if len(word) > _LONGEST or len(_KEY_SEPARATOR.findall(name)) > _DEEPEST:
        return Problem("is longer or nested deeper than any value here", name, text, COMMAND_LINE)
    if key in texts and not (key in GROUPS and text.startswith("{")):
        if not text:
            return Problem("is empty; write a value, or leave the word out", key, text, COMMAND_LINE)
        return Assignment(key, _text(text))
    return _by_grammar(word, key, text)


def _text(text: str) -> str | None:
    if text == NULL:
        return None
    unquoted = quoted(text)
    return text if unquoted is None else unquoted


def quoted(text: str) -> str | None:
    """What stands between quotes that are around all of a text; None if there are none."""
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return None
    try:
        value = OverridesParser.create().parse_override(f"key={text}").value()
    except (HydraException, ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _by_grammar(word: str, key: str, text: str) -> Assignment | Problem:
    try:
        override = OverridesParser.create().parse_override(word)
        if override.is_sweep_override():
            message = "takes one value here; write a list as [a,b]; `train curve` runs each of several values"
            return Problem(message, key, text, COMMAND_LINE)
        if override.package or not override.key_or_group:
            return Problem("is no key=value", word, text, COMMAND_LINE)
        return Assignment(override.key_or_group.replace("/", "."), _plain(override.value()))
    except (HydraException, ValueError, RecursionError):
        return Problem(f"cannot be read{described(key)}", key, text, COMMAND_LINE)


def _plain(value: Any) -> Any:
    """Hydra's quoted strings and nested values as plain Python ones."""
    if isinstance(value, dict):
        return {str(_plain(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return getattr(value, "text", value)
