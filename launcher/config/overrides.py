"""Words of the command line in Hydra's override grammar, text as it stands; which algorithms they turn on and off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.config.groups import files
from launcher.config.keys import described, did_you_mean, is_text, nearest
from launcher.config.layers import COMMAND_LINE, NOT_PLAIN, is_plain
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.validate import ON_OFF
from launcher.config.yaml_file import package
from launcher.errors import Problem, Problems, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ON, OFF = ON_OFF
NULL = "null"
# The key of folders with more recipes and options, as Hydra has it.
SEARCH_PATH = "hydra.searchpath"

_GROUP = "algorithms"
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


class Switches:
    """The algorithms that are on after some files, each laid over those before it, and the words of a command line.

    Of each file that is the list of its defaults list, None if it has none, and what its body has under `algorithms`.
    """

    def __init__(self, parts: Iterable[tuple[Any, Any]]):
        self._files = files(_GROUP)
        self._of_recipe: list[str] = []
        self._on: set[str] = set()
        self._mentioned: set[str] = set()
        self._values: dict[str, list[Assignment]] = {}
        for listed, stated in parts:
            if isinstance(listed, list):
                self._of_recipe = [str(option) for option in listed]
                self._on = {self._algorithm(option) for option in self._of_recipe}
            self._read(stated)
        self._listed = list(self._of_recipe)

    @property
    def active(self) -> set[str]:
        return self._on

    def apply(self, given: Sequence[Assignment], problems: Problems) -> None:
        """Follow the words in their order; a problem for each that names no algorithm, or says neither on nor off."""
        for assignment in given:
            head, _, rest = assignment.key.partition(".")
            if head != _GROUP:
                continue
            name, _, below = rest.partition(".")
            if not name:
                self._choose(assignment, problems)
            elif name not in self._files:
                message = f"no such algorithm; {did_you_mean(name, self._files)}"
                problems.append(Problem(message, f"{_GROUP}.{name}", assignment.value, COMMAND_LINE))
            elif below or isinstance(assignment.value, Mapping):
                self._turn_on(name)
                self._values.setdefault(name, []).append(assignment)
            elif assignment.value in (ON, True):
                self._turn_on(name)
            elif assignment.value in (OFF, False, None):
                self._on.discard(self._algorithm(name))
                self._values.pop(name, None)
            else:
                like = nearest(str(assignment.value), ON_OFF)
                message = f"must be on, off, or a mapping of values{f'; did you mean {like}?' if like else ''}"
                problems.append(Problem(message, assignment.key, assignment.value, COMMAND_LINE))

    def choice(self) -> list[str]:
        """The override of Hydra's list of options, if the recipe's is not what it is in the end."""
        listed = {self._algorithm(option) for option in self._listed}
        # note: first, so that the options that were chosen have the last word on their values
        more = sorted(name for name in self._on - listed if name in self._files)
        chosen = [*more, *self._listed]
        return [f"{_GROUP}=[{','.join(chosen)}]"] if chosen != self._of_recipe else []

    def off(self) -> list[str]:
        """The overrides by null that turn off what files have values for."""
        listed = {self._algorithm(option) for option in self._listed}
        return [f"++{_GROUP}.{name}=null" for name in sorted((self._mentioned | listed) - self._on)]

    def values(self) -> list[Assignment]:
        """The words that give values to algorithms that are on."""
        return [word for name, words in self._values.items() if name in self._on for word in words]

    def _choose(self, assignment: Assignment, problems: Problems) -> None:
        """Just the algorithms of a list."""
        value = [] if assignment.value in (OFF, None, False, {}) else assignment.value
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            message = "must be a list of names such as [ema,blurpool]; values are words such as algorithms.sam.rho=0.1"
            problems.append(Problem(message, _GROUP, assignment.value, COMMAND_LINE))
            return
        for name in set(names) - self._files.keys():
            message = f"no such algorithm; {did_you_mean(name, self._files)}"
            problems.append(Problem(message, f"{_GROUP}.{name}", ON, COMMAND_LINE))
        self._listed = [name for name in dict.fromkeys(names) if name in self._files]
        self._on = {self._algorithm(option) for option in self._listed}
        self._values.clear()

    def _turn_on(self, option: str) -> None:
        algorithm = self._algorithm(option)
        if algorithm != option and option not in self._listed:
            self._listed.append(option)
        self._on.add(algorithm)

    def _algorithm(self, option: str) -> str:
        """The algorithm that an option has values for: its file's name, unless its `# @package` line says another."""
        path = self._files.get(option)
        at = package(path) if path is not None else None
        return (at or option).removeprefix(f"{_GROUP}.")

    def _read(self, stated: Any) -> None:
        """What a file's body turns on, by giving it values, or off, by null."""
        for name, value in stated.items() if isinstance(stated, Mapping) else ():
            self._mentioned.add(str(name))
            if value is None:
                self._on.discard(str(name))
            elif isinstance(value, Mapping):
                self._on.add(str(name))
