"""Parse the words of a command line by Hydra's override grammar, and turn algorithms on and off by them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.config.groups import files
from launcher.config.keys import is_text, lists_text, nearest_key
from launcher.config.layers import COMMAND_LINE, NOT_PLAIN, is_plain
from launcher.config.schema import GROUPS, SWITCHED, RunConfig
from launcher.config.similar import did_you_mean, nearest
from launcher.config.targets import KEY as TARGET
from launcher.config.validate import ON_OFF
from launcher.config.yaml_file import package
from launcher.errors import Problem, Problems, UserError, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ON, OFF = ON_OFF
NULL = "null"
# Hydra's key of folders with more recipes and options.
SEARCH_PATH = "hydra.searchpath"

_LONGEST = 10_000
_ITEM = re.compile(r"""\s*'(?:\\.|[^'\\])*'\s*(?=,|$)|\s*"(?:\\.|[^"\\])*"\s*(?=,|$)|[^,]+""")
_KEY = re.compile(r"([A-Za-z_]\w*\.){0,10}[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Assignment:
    """A parsed `key=value`, and the value in Hydra's grammar; `~algorithms.X` is `algorithms.X=off`."""

    key: str
    value: Any
    text: str

    @property
    def word(self) -> str:
        """Return the override that sets or adds the key; unknown keys fail after composition."""
        return f"++{self.key}={self.text}"


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
        return Assignment(key[1:], OFF, OFF)
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
    if (key not in GROUPS and not is_text(schema, known)) or (key in GROUPS and text.startswith("{")):
        return _by_grammar(key, text)
    if lists_text(schema, known) and (items := _items(text)) is not None:
        return Assignment(key, items, f"[{','.join(map(quoted, items))}]")
    if not text:
        raise UserError(Problem("is empty; set a value, or omit the key", key, text, COMMAND_LINE))
    if text == NULL:
        return Assignment(key, None, NULL)
    value = _literal(text)
    return Assignment(key, value, quoted(value))


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
        return Assignment(key, text, quoted(text))
    if override.is_sweep_override():
        message = "takes one value; write a list as [a,b], or use `train curve` to run several values"
        raise UserError(Problem(message, key, text, COMMAND_LINE))
    return Assignment(key, override.value(), text)


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


class Switches:
    """The active algorithms, or callbacks or metrics, after applying config files in order, and then words.

    Each file gives the options of its defaults list (None: no list) and its body's values of the group: values turn one
    on, null turns it off. `active` maps each to the option of its values, which may have no file but a `_target_`.
    """

    def __init__(self, group: str, parts: Iterable[tuple[Any, Any]]):
        self.active: dict[str, str] = {}
        self._group, self._files = group, files(group)
        self._inline: set[str] = set()
        self._of_recipe: list[str] = []
        self._stated: set[str] = set()
        self._values: list[Assignment] = []
        for listed, stated in parts:
            if isinstance(listed, list):
                self._of_recipe = [str(option) for option in listed]
                self._choose(self._of_recipe)
            for name, value in stated.items() if isinstance(stated, Mapping) else ():
                self._stated.add(str(name))
                self._inline |= {str(name)} if isinstance(value, Mapping) and TARGET in value else set()
                self._turn(str(name), on=value is not None)

    def apply(self, assignments: Sequence[Assignment], problems: Problems) -> None:
        """Apply assignments in order; add a problem for each unknown one or invalid value."""
        own = [one for one in assignments if one.key.partition(".")[0] == self._group]
        for _, name, *rest in (one.key.split(".") for one in own if "." in one.key):
            self._inline |= {name} if rest == [TARGET] else set()
        for assignment in own:
            with problems.collected():
                self._follow(assignment)

    def values(self) -> list[Assignment]:
        """Return the assignments of values of active ones."""
        return [one for one in self._values if self._algorithm(one.key.split(".")[1]) in self.active]

    def words(self) -> list[str]:
        """Return Hydra's overrides: the list of options if the recipe's lacks some, nulls to turn off, and values."""
        options = [option for option in self.active.values() if option in self._files]
        choice = [] if {*options} <= {*self._of_recipe} else [f"{self._group}=[{','.join(options)}]"]
        stated = self._stated | {self._algorithm(option) for option in self._of_recipe}
        off = [f"++{self._group}.{name}=null" for name in sorted(stated - self.active.keys())]
        return [*choice, *off, *(one.word for one in self.values())]

    def _follow(self, assignment: Assignment) -> None:
        _, *names = assignment.key.split(".")
        value = assignment.value
        options = names[:1] or ([] if value in (OFF, False, None, {}) else [value] if isinstance(value, str) else value)
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            message = "must be a list such as [ema,blurpool]; set values by algorithms.sam.rho=0.1"
            raise UserError(Problem(message, self._group, value, COMMAND_LINE))
        if unknown := [option for option in options if option not in {*self._files, *self._inline}]:
            what, known = self._group.removesuffix("s"), {*self._files, *self._inline}
            hints = {f"{self._group}.{option}": did_you_mean(option, known) for option in unknown}
            raise UserError(*(Problem(f"no such {what}; {hints[key]}", key, value, COMMAND_LINE) for key in hints))
        if not names:
            self._choose(options)
            return
        if names[1:] or isinstance(value, Mapping):
            self._values.append(assignment)
        elif value not in (ON, OFF, True, False, None):
            like = nearest(str(value), ON_OFF)
            message = f"must be on, off, or a mapping of values{f'; did you mean {like}?' if like else ''}"
            raise UserError(Problem(message, assignment.key, value, COMMAND_LINE))
        self._turn(names[0], on=bool(names[1:]) or value not in (OFF, False, None))

    def _choose(self, options: Sequence[str]) -> None:
        """Turn on exactly these options."""
        self.active = {self._algorithm(option): option for option in options}

    def _turn(self, option: str, *, on: bool) -> None:
        """Turn one off, or on with the values of the option, which may be a variant."""
        algorithm = self._algorithm(option)
        if not on:
            self.active.pop(algorithm, None)
        elif algorithm != option or algorithm not in self.active:
            self.active[algorithm] = option

    def _algorithm(self, option: str) -> str:
        """Return the algorithm of an option: the package of its `# @package` line, or its file name."""
        path = self._files.get(option)
        at = package(path) if path is not None else None
        return (at or option).removeprefix(f"{self._group}.")
