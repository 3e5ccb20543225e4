"""Words of the command line in Hydra's override grammar; text is taken as it stands, whatever its characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.config.keys import described, is_text
from launcher.config.layers import COMMAND_LINE, NOT_PLAIN, is_plain
from launcher.config.schema import GROUPS, RunConfig
from launcher.errors import Problem, Problems, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

OFF = "off"
NULL = "null"
# The key of folders with more recipes and options, as Hydra has it.
SEARCH_PATH = "hydra.searchpath"

_LONGEST = 10_000
_DEEPEST = 10
_KEY_SEPARATOR = re.compile(r"[./]")
_OFF_WORD = re.compile(r"~algorithms[./](\w+)(=.*)?")
_SWEEP = re.compile(r"(choice|range|sort|shuffle)\(.*\)")


@dataclass(frozen=True)
class Assignment:
    """`key=value` as typed, and the value's text in Hydra's grammar; `~algorithms.X` is `algorithms.X=off`."""

    key: str
    value: Any
    text: str

    @property
    def word(self) -> str:
        """The override that sets the key, whether or not it is there: strange keys are found when all is composed."""
        return f"++{self.key}={self.text}"


def parse(
    words: Sequence[str], problems: Problems, holds_text: Callable[[str], bool] | None = None
) -> list[Assignment]:
    """What was typed, in its order, without the words that are no assignments, each of which is a problem.

    The value of a key that `holds_text` (those of a run's config, if None) is the text as it stands, but for `null` and
    for quotes around all of it.
    """
    read = [_assignment(word, holds_text or _holds_text) for word in words]
    problems += [found for found in read if isinstance(found, Problem)]
    given = [found for found in read if isinstance(found, Assignment)]
    problems += [Problem(NOT_PLAIN, one.key, one.value, COMMAND_LINE) for one in given if not is_plain(one.value)]
    return [one for one in given if is_plain(one.value)]


def last(assignments: Sequence[Assignment], key: str) -> Any:
    """The value that counts of those typed for a key; None if there is none."""
    return next((given.value for given in reversed(assignments) if given.key == key), None)


def word_of(key: str, text: str) -> str:
    """The word that gives a text key this very text."""
    return f"{key}={quoted(text) if text == NULL or _unquoted(text) is not None else text}"


def quoted(text: str) -> str:
    """The text between quotes, as Hydra's grammar reads it back."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return str(QuotedString(text, Quote.single).with_quotes())


def alternatives(word: str, most: int) -> list[str] | None:
    """The words that one word with several values such as `epochs=8,16` stands for, at most so many; None for another.

    The texts of a text key are split at their commas.
    """
    key, _, text = word.partition("=")
    if is_text(RunConfig, key) and not _SWEEP.fullmatch(text):
        return None if _unquoted(text) is not None else [f"{key}={value}" for value in text.split(",")]
    override = _by_hydra(word)
    # note: a glob has no values of its own until Hydra has looked for files
    if override is None or not override.is_sweep_override() or text.startswith("glob("):
        return None
    return [f"{override.get_key_element()}={value}" for value in islice(override.sweep_string_iterator(), most)]


def _holds_text(key: str) -> bool:
    return key in GROUPS or is_text(RunConfig, key)


def _assignment(word: str, holds_text: Callable[[str], bool]) -> Assignment | Problem:
    name, equals, text = word.partition("=")
    key = name.lstrip("+").replace("/", ".")
    if off := _OFF_WORD.fullmatch(word):
        return Assignment(f"algorithms.{off[1]}", OFF, OFF)
    if name.startswith("~"):
        return Problem(f"{shown(word)}: ~ turns an algorithm off, such as ~algorithms.mixup")
    if not equals:
        return Problem(f"{shown(word)} is no verb and no key=value; `train --help` lists the verbs")
    if not key:
        return Problem(f"{shown(word)} has no key before its =; write key=value")
    if len(word) > _LONGEST or len(_KEY_SEPARATOR.findall(name)) > _DEEPEST:
        return Problem("is longer or nested deeper than any value here", name, text, COMMAND_LINE)
    if holds_text(key) and not (key in GROUPS and text.startswith("{")):
        if not text:
            return Problem("is empty; write a value, or leave the word out", key, text, COMMAND_LINE)
        if text == NULL:
            return Assignment(key, None, NULL)
        value = text if (inner := _unquoted(text)) is None else inner
        return Assignment(key, value, quoted(value))
    return _by_grammar(key, text)


def _by_grammar(key: str, text: str) -> Assignment | Problem:
    override = _by_hydra(f"{key}={text}")
    if override is None:
        return Problem(f"cannot be read{described(key)}", key, text, COMMAND_LINE)
    if override.is_sweep_override():
        message = "takes one value here; write a list as [a,b]; `train curve` runs each of several values"
        return Problem(message, key, text, COMMAND_LINE)
    if override.package or not override.key_or_group:
        return Problem("is no key=value", key, text, COMMAND_LINE)
    return Assignment(key, _plain(override.value()), text)


def _unquoted(text: str) -> str | None:
    """What stands between quotes that are around all of a text; None if there are none."""
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return None
    override = _by_hydra(f"key={text}")
    value = override.value() if override else None
    return value if isinstance(value, str) else None


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
