"""Parse the words of a command line by Hydra's override grammar, and turn algorithms on and off by them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from launcher.config.groups import options, values
from launcher.config.keys import is_text, kinds, line_instead, lists_text, nearest_key
from launcher.config.layers import COMMAND_LINE, NOT_PLAIN, is_plain
from launcher.config.schema import GROUPS, SWITCHED, RunConfig
from launcher.config.similar import did_you_mean
from launcher.config.validate import ON_OFF
from launcher.errors import Problem, Problems, UserError, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ON, OFF = ON_OFF
NULL = "null"
# Keys of a composed config that are not values of the run.
_NOT_OF_A_RUN = ("about", "defaults", "hydra")
# Hydra's key of folders with more recipes and options.
SEARCH_PATH = "hydra.searchpath"

_LONGEST = 10_000
_ITEM = re.compile(r"""\s*'(?:\\.|[^'\\])*'\s*(?=,|$)|\s*"(?:\\.|[^"\\])*"\s*(?=,|$)|[^,]+""")
_KEY = re.compile(r"([A-Za-z_]\w*\.){0,10}[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Assignment:
    """A parsed `key=value`; `~algorithms.X` is `algorithms.X=off`."""

    key: str
    value: Any


def parse(words: Sequence[str], problems: Problems, schema: type = RunConfig, prefix: str = "") -> list[Assignment]:
    """Parse words into assignments, in order; add a problem for each invalid word.

    A key of text, or of lists of text, takes its values literally, except `null` and outer quotes; so does a value
    outside Hydra's grammar. Keys are those of a schema after a prefix.
    """
    assignments = []
    for word in words:
        with problems.collected():
            assignment = _assignment(word, schema, prefix)
            if not is_plain(assignment.value):
                raise UserError(Problem(NOT_PLAIN, assignment.key, assignment.value, COMMAND_LINE))
            assignments.append(assignment)
    return assignments


def word_of(key: str, text: str) -> str:
    """Return the word that sets a text key to exactly this text."""
    return f"{key}={quoted(text) if text == NULL or unquoted(text) is not None else text}"


def quoted(text: str) -> str:
    """Quote a text by Hydra's grammar."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return str(QuotedString(text, Quote.single).with_quotes())


def _assignment(word: str, schema: type, prefix: str) -> Assignment:
    name, equals, text = word.partition("=")
    key = name.lstrip("+").replace("/", ".")
    if key.startswith("~") and key[1:].partition(".")[0] in SWITCHED:
        return Assignment(key[1:], OFF)
    if name.startswith("~"):
        raise UserError(f"{shown(word)}: ~ only turns off an algorithm, such as ~algorithms.mixup")
    if not equals:
        raise UserError(f"{shown(word)} is neither a verb nor key=value; `train --help` lists the verbs")
    if len(word) > _LONGEST:
        raise UserError(Problem(f"must be at most {_LONGEST:,} characters", name, text, COMMAND_LINE))
    if not _KEY.fullmatch(key):
        hint = f"; did you mean {like}?" if (like := nearest_key(key)) else ""
        raise UserError(Problem(f"no such key{hint}", name, text, COMMAND_LINE))
    known = key.removeprefix(prefix)
    if (key not in GROUPS and not is_text(schema, known)) or (key in GROUPS and text.startswith(("{", "["))):
        return _by_grammar(key, text)
    if lists_text(schema, known) and (items := _items(text)) is not None:
        return Assignment(key, items)
    if not text:
        raise UserError(Problem("is empty; set a value, or omit the key", key, text, COMMAND_LINE))
    return Assignment(key, None if text == NULL else _literal(text))


def _literal(text: str) -> str:
    """Return a text as typed, without outer quotes."""
    return text if (inner := unquoted(text)) is None else inner


def _items(text: str) -> list[str] | None:
    """Return the texts of a list in brackets; None if it is none."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    return [_literal(item) for item in map(str.strip, _ITEM.findall(text[1:-1])) if item]


def _by_grammar(key: str, text: str) -> Assignment:
    override = read_override(f"key={text}")
    if override is None:
        return Assignment(key, text)
    if override.is_sweep_override():
        message = "takes one value; write a list as [a,b], or use `train curve` to run several values"
        if override.is_interval_sweep():
            message = f"is an interval; type train curve {shlex.quote(f'{key}={text}')} trials=8"
        raise UserError(Problem(message, key, text, COMMAND_LINE))
    return Assignment(key, override.value())


def unquoted(text: str) -> str | None:
    """Return a text without its outer quotes; None if it has none."""
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return None
    override = read_override(f"key={text}")
    value = override.value() if override else None
    return value if isinstance(value, str) else None


def read_override(word: str) -> Override | None:
    """Parse a word by Hydra's grammar; None if it is invalid."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(word)
        override.value()
        return override
    except (HydraException, ValueError, RecursionError):
        return None


def sort_words(assignments: Sequence[Assignment], problems: Problems) -> tuple[dict[str, str], list[Assignment]]:
    """Split words into the options that they choose by group and those that set values; report invalid ones."""
    chosen: dict[str, str] = {}
    setting, of_several = [], list[Assignment]()
    for one in assignments:
        key, value, problem = one.key, one.value, None
        head, _, rest = key.partition(".")
        if head in _NOT_OF_A_RUN and key != SEARCH_PATH:
            line = line_instead(key, value)
            problem = f"no such key; {line}" if line else "no such key"
        elif head in GROUPS and rest == "name":
            wrong = _no_option(head, value)
            problem = f"cannot be set; {wrong or f'type {head}={value} to choose an option'}"
        elif key in GROUPS and isinstance(value, list):
            with problems.collected():
                chosen[key], of_several = _several(key, value)
        elif key in GROUPS and not isinstance(value, Mapping):
            problem = _no_option(key, value)
            chosen |= {key: value} if problem is None else {}
        elif head not in SWITCHED and key != SEARCH_PATH:
            setting.append(one)
        if problem is not None:
            problems.append(Problem(problem, key, value, COMMAND_LINE))
    return chosen, [*of_several, *setting]


def _several(group: str, listed: Sequence[Any]) -> tuple[str, list[Assignment]]:
    """Return the option of a group that combines those of a list, and the values that turn these on in it.

    Raises UserError if the group has none, or an option cannot be combined.
    """
    shown_list = f"[{','.join(map(str, listed))}]"
    kind = next((kind for kind in kinds(group) if getattr(kind, "combines", False)), None)
    if kind is None or not listed:
        raise UserError(Problem(f"takes one option; type {group}=NAME", group, shown_list, COMMAND_LINE))
    if wrong := [problem for name in listed if (problem := _no_option(group, name))]:
        raise UserError(*(Problem(one, group, shown_list, COMMAND_LINE) for one in wrong))
    names = list(dict.fromkeys(listed))
    if len(names) == 1:
        return names[0], []
    combining = get_args(get_type_hints(kind)["name"])[0]
    usual, known, added = values(group, combining), {field.name for field in fields(kind)}, []
    for name in names:
        options_own = values(group, name)
        if (own := {key: value for key, value in options_own.items() if key not in known}) and name not in known:
            others = ", ".join(one for one in options(group) if one in known)
            message = f"{name} cannot be combined; type {group}={name}, or a list of {others} and those of files"
            raise UserError(Problem(message, group, shown_list, COMMAND_LINE))
        changed = {key: value for key, value in options_own.items() if key in usual and value != usual[key]}
        added += [Assignment(f"{group}.{key}", value) for key, value in changed.items() if key != "name"]
        added += [Assignment(f"{group}.{name}", own)] if own else []
    return combining, added


def _no_option(group: str, value: Any) -> str | None:
    """Return what is wrong with a group's option, and what to type instead; None if it exists."""
    names = options(group)
    if value in names:
        return None
    hints = [line for line in [line_instead(group, value)] if line]
    hints += [hint for kind in kinds(group) if (hint := getattr(kind, "instead_of", lambda word: None)(str(value)))]
    return f"no such {group}; {hints[0] if hints else did_you_mean(str(value), names)}"
