"""Words of the command line to assignments: Hydra's override grammar for lists, numbers and mappings, text as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.config.keys import described, is_text
from launcher.config.layers import COMMAND_LINE
from launcher.config.schema import GROUPS, RunConfig
from launcher.errors import Problem, Problems, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override, ValueType

OFF = "off"
NULL = "null"

_LONGEST = 10_000
_DEEPEST = 10
_KEY_SEPARATOR = re.compile(r"[./]")
# What Hydra's grammar has one reading for: its import and its parser take longer than a plan.
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_SCALAR = rf"(?:-?(?:0|[1-9][0-9]{{0,17}})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|(?!(?i:inf|nan)\b){_NAME})"
_PLAIN = re.compile(rf"{_NAME}(?:\.{_NAME})*=(?:{_SCALAR}|\[{_SCALAR}(?:,{_SCALAR})*\])")
_WORDS = {"true": True, "false": False, "null": None}
_OFF_WORD = re.compile(r"~algorithms[./](\w+)(=.*)?")


@dataclass(frozen=True)
class Assignment:
    """`key=value` as typed; a deletion `~algorithms.X` is `algorithms.X=off`."""

    key: str
    value: Any


class Words(list[Assignment]):
    """The assignments of a command line, in the order of typing."""

    def last(self, key: str) -> Any:
        """The value that counts of those typed for a key; None if there is none."""
        return next((given.value for given in reversed(self) if given.key == key), None)


def parse(words: Sequence[str], problems: Problems, holds_text: Callable[[str], bool] | None = None) -> Words:
    """What was typed, without the words that are no assignments, each of which is a problem.

    The value of a key that `holds_text` (those of a run's config, if None) is the text as it stands, but for `null` and
    for quotes around all of it.
    """
    given = Words()
    for word in words:
        found = _assignment(word, holds_text or _holds_text)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            given.append(found)
    return given


def _holds_text(key: str) -> bool:
    return key in GROUPS or is_text(RunConfig, key)


def word_of(key: str, text: str) -> str:
    """The word that gives a text key this very text."""
    if text == NULL or quoted(text) is not None:
        text = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"{key}={text}"


def _assignment(word: str, holds_text: Callable[[str], bool]) -> Assignment | Problem:
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
    if holds_text(key) and not (key in GROUPS and text.startswith("{")):
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
    override = _by_hydra(f"key={text}")
    value = override.value() if override else None
    return value if isinstance(value, str) else None


def alternatives(word: str, most: int) -> list[str] | None:
    """The words that one word with several values such as `epochs=8,16` stands for, at most so many; None for another.

    The texts of a text key are split at their commas.
    """
    key, _, text = word.partition("=")
    if is_text(RunConfig, key):
        return None if quoted(text) is not None else [f"{key}={value}" for value in text.split(",")]
    override = None if _PLAIN.fullmatch(word) else _by_hydra(word)
    # note: a glob stands for options of a group, which are not those of Hydra here
    if override is None or not override.is_sweep_override() or override.value_type is _glob():
        return None
    return [f"{override.get_key_element()}={value}" for value in islice(override.sweep_string_iterator(), most)]


def _glob() -> ValueType:
    from hydra.core.override_parser.types import ValueType

    return ValueType.GLOB_CHOICE_SWEEP


def _by_grammar(word: str, key: str, text: str) -> Assignment | Problem:
    if _PLAIN.fullmatch(word):
        return Assignment(key, _plain_value(text))
    override = _by_hydra(word)
    if override is None:
        return Problem(f"cannot be read{described(key)}", key, text, COMMAND_LINE)
    if override.is_sweep_override():
        message = "takes one value here; write a list as [a,b]; `train curve` runs each of several values"
        return Problem(message, key, text, COMMAND_LINE)
    if override.package or not override.key_or_group:
        return Problem("is no key=value", word, text, COMMAND_LINE)
    return Assignment(override.key_or_group.replace("/", "."), _plain(override.value()))


def _plain_value(text: str) -> Any:
    if text[0] == "[":
        return [_plain_value(part) for part in text[1:-1].split(",")]
    if text[0] not in "-0123456789":
        return _WORDS.get(text.lower(), text)
    return float(text) if set(text) & set(".eE") else int(text)


def _by_hydra(word: str) -> Override | None:
    """What Hydra reads in a word; None if it is none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(word)
        override.value()
        return override
    except (HydraException, ValueError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    """Hydra's quoted strings and nested values as plain Python ones."""
    if isinstance(value, dict):
        return {str(_plain(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return getattr(value, "text", value)
