"""Parse the words of a command line as a verb's options and `key=value`, with a correction for each wrong word."""

import argparse
import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from launcher import paths
from launcher.config import code, recipes
from launcher.config.keys import all_keys, choices, line_instead, nearest_key, synonyms, takes
from launcher.config.overrides import SEARCH_PATH, quoted
from launcher.config.schema import GROUPS
from launcher.config.similar import nearest
from launcher.config.validate import ON_OFF
from launcher.credentials import takes_secret
from launcher.errors import Problem, UserError, shown

KEYS = "key="  # the start of the metavar of key=value words

Parsers = Mapping[str, Callable[[], argparse.ArgumentParser]]  # of all verbs

_NUMBER = re.compile(r"-\.?\d")
# A remedy that is one `key=value`.
_TYPED = re.compile(r"type [\w.]+=\S+")
# Flags of other programs, and the verb that replaces them.
_PLAN, _CURVE = ("--dry-run", "--dryrun", "--dry", "-n"), ("--multirun", "-m")
_ELSEWHERE = dict.fromkeys(_PLAN, "plan") | dict.fromkeys(_CURVE, "curve")
_CFG, _PARTS_OF_CFG = ("--cfg", "-c"), ("job", "hydra", "all")  # Hydra's flag that prints the config, and its values
_CONFIG, _QUIET = ("--config", "--config-name", "--config-file", "-c"), ("--quiet", "--silent", "-q")


@dataclass(frozen=True)
class _Wrong:
    """A wrong word: the error, what replaces the word, None without a correction, and the remedy then."""

    text: str
    remedy: str
    instead: str | None = None


def read(verb: str, words: Sequence[str], parsers: Parsers) -> argparse.Namespace:
    """Parse the arguments of a verb.

    `--key value` is `key=value` for every key, `key = value` too, and the bare name of a recipe is `recipe=NAME`.

    Raises UserError with every other word, and the command line to type instead.
    """
    reading = _Reading(verb, words, parsers)
    if reading.wrong:
        corrected = shlex.join(["train", *([*reading.head, *reading.line] or ["run"])]) + reading.end
        line = corrected if reading.is_correctable else None
        remedies = [f"did you mean {line or one.instead}?" if one.instead else one.remedy for one in reading.wrong]
        raise UserError(*(Problem(f"{one.text}; {to}") for one, to in zip(reading.wrong, remedies, strict=True)))
    positional = reading.positional
    return parsers[verb]().parse_args([*reading.own, *(["--"] if positional else []), *positional])


def takes_keys(parser: argparse.ArgumentParser) -> bool:
    """Return whether a verb takes `key=value` words."""
    return any(KEYS in str(action.metavar) for action in parser._actions if not action.option_strings)


def with_code(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Load the code that the words of a verb on a finished run name, and return the other words.

    Verbs that compose a config read it from there.

    Raises UserError if it cannot be loaded.
    """
    named = [word for word in words if word.startswith(f"{code.KEY}=")]
    if named and (_fixed(parser) or not takes_keys(parser)):
        for word in named:
            code.use(word.partition("=")[2].strip("[]").split(","))
        return [word for word in words if word not in named]
    return words


def has_recipe(words: Sequence[str]) -> bool:
    """Return whether `key=value` words have a recipe, also `none`, so that none is chosen for the images."""
    typed = [value for key, _, value in (word.lstrip("+").partition("=") for word in words) if key == "recipe"]
    return bool(typed) and typed[-1].strip("'\"") != recipes.AUTO


def _fixed(parser: argparse.ArgumentParser) -> int:
    """Return the number of positional words that are not key=value."""
    return sum(action.nargs in (None, "?") for action in parser._actions if not action.option_strings)


class _Reading:
    """One pass over the words: a verb's `own` options, the `positional` words (`key=value` is one), and the `wrong`.

    head, line: the verb and the words of the line to type, with its `end` in a shell, if it `is_correctable`.
    """

    def __init__(self, verb: str, words: Sequence[str], parsers: Parsers):
        self.own: list[str] = []
        self.positional: list[str] = []
        self.wrong: list[_Wrong] = []
        self.end, self.is_correctable = "", True
        self.line: list[str] = []
        self._config_dirs: list[Path] = []
        self._verb, self._words, self._parsers, self._parser = verb, words, parsers, (parser := parsers[verb]())
        self._left, self._options = deque(words), parser._option_string_actions
        self._takes_keys, self._fixed = takes_keys(parser), _fixed(parser)
        self.head = [] if verb == "run" else [verb]
        self._start = " ".join(["train", *self.head])
        while self._left and self._left[0] != "--":
            before, wrong = [*self._left], len(self.wrong)
            self._take(self._left.popleft())
            if len(self.wrong) == wrong:
                self.line += before[: len(before) - len(self._left)]
        self.line += self._left
        self.positional += [*self._left][1:]

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        # note: they import the options of all groups
        return (*all_keys(), SEARCH_PATH) if self._takes_keys else ()

    def _take(self, word: str) -> None:
        """Take a word and those that belong to it."""
        if word.partition("=")[0] in self._options:
            self._take_own(word)
        elif not _is_value(word):
            self._take_flag(word)
        elif self._fixed or not self._takes_keys:
            # note: the first word of a verb such as resume is not key=value
            self._fixed -= 1
            self.positional.append(word)
        else:
            self._take_bare(word)

    def _take_own(self, word: str) -> None:
        self.own.append(word)
        action = self._options.get(word)
        if action is not None and action.nargs is None and self._left:
            self.own.append(self._left.popleft())

    def _take_flag(self, word: str) -> None:
        """Take `--key value`, `--key=value` or `--switch` as `key=value`."""
        name, equals, value = word.lstrip("-").partition("=")
        key = SEARCH_PATH if name == "config-dir" else name.replace("-", "_")
        if key not in self._keys:
            if takes_secret(word) and self._left and _is_value(self._left[0]):
                self._left.popleft()  # note: it would be shown
            self._refuse(word, f"is not an option of {self._start}")
        elif equals:
            self._assign(key, value)
        elif (following := self._value_after(key)) is not None:
            self._assign(key, following)
        else:
            self._add(_Wrong(f"{word} needs a value", f"type {self._start} {word} VALUE, or {key}=VALUE"))

    def _value_after(self, key: str) -> str | None:
        """Take the value that follows a flag; of a switch without one return the first, of another key None."""
        switch = _switch(key)
        if self._left and (self._left[0] in switch or (not switch and _is_value(self._left[0]))):
            return self._left.popleft()
        return switch[0] if switch else None

    def _take_bare(self, word: str) -> None:
        """Take one word or several as `key=value`, and a recipe's bare name as `recipe=NAME`."""
        name, equals, value = word.partition("=")
        following = self._left[0] if self._left else ""
        if not equals and following.startswith("=") and name in self._keys:
            equals, value = "=", self._left.popleft()[1:]
            following = self._left[0] if self._left else ""
        if equals and not value and "=" not in following and _is_value(following) and name in self._keys:
            value = self._left.popleft() if self._left else ""
        if equals or word.startswith("~"):
            self.positional.append(f"{name}{equals}{value}")
        elif self._is_recipe(word):
            self.positional.append(f"recipe={word}")
        else:
            self._refuse(word, "is neither a verb nor key=value")

    def _assign(self, key: str, value: str) -> None:
        """Take `key=value`; `--config-dir` adds its folder to Hydra's search path."""
        if key == SEARCH_PATH:
            self._config_dirs.append(Path(value))
            value = f"[{quoted(value)}]"
        self.positional.append(f"{key}={value}")

    def _is_recipe(self, word: str) -> bool:
        with paths.searching(self._config_dirs):
            return word == recipes.AUTO or recipes.find(word) is not None

    def _add(self, *wrong: _Wrong) -> None:
        self.wrong += wrong
        self.is_correctable &= all(one.instead for one in wrong)

    def _refuse(self, word: str, reason: str) -> None:
        """Add a wrong word; with a correction read the corrected line on."""
        text, flag = f"{shown(word)} {reason}", word.partition("=")[0]
        is_start = self._verb == "run" and word == self._words[0]
        line = self._line_instead(word, is_start and not word.startswith("-") and word not in synonyms("verbs"))
        if line and not _TYPED.fullmatch(line):
            if is_start and not word.startswith("-"):
                self._left.clear()
            elif self._left and "=" not in word and _is_value(self._left[0]):
                self._left.popleft()
            self._add(_Wrong(text, line))
            return
        # note: the remaining words belong to that verb, so their errors are not reported
        is_last, remedy = is_start or word in self._parsers, f"see `{self._start} --help` and `train ls`"
        if verb := self._verb_instead(flag, flag.lstrip("-").replace("-", "_"), is_start):
            self._add(_Wrong(text, remedy, f"train {verb}"))
            self.head = [verb]
            self._read_on(verb, [], report=not is_last)
        elif flag in _QUIET:
            self.end = " > run.log"
            self._add(_Wrong(text, remedy, "> run.log"))
            self._read_on(self._verb, [], report=not is_last)
        elif instead := self._word_instead(word):
            self._add(_Wrong(text, remedy, shlex.quote(instead)))
            self._read_on(self._verb, [instead], report=not is_last)
        else:
            self._add(_Wrong(text, remedy))
            if is_last:
                self._left.clear()

    def _read_on(self, verb: str, replaced: Sequence[str], *, report: bool) -> None:
        """Read the line of a verb with what replaces a word, and report its other wrong words."""
        rest = _Reading(verb, [*self.line, *replaced, *self._left], self._parsers)
        self.wrong += rest.wrong if report else []
        self.is_correctable &= rest.is_correctable
        self.head, self.line, self.end = rest.head or self.head, rest.line, rest.end + self.end
        self._left.clear()

    def _line_instead(self, word: str, may_be_verb: bool = False) -> str | None:
        """Return what to type for a removed verb, or another tool's flag with a value that no key here takes."""
        flag, equals, value = word.partition("=")
        following = self._left[0] if self._left and _is_value(self._left[0]) else "true"
        is_flag = flag.startswith("-") and flag.lstrip("-") not in self._parsers
        name = flag.lstrip("-").replace("-", "_")
        return line_instead(name, _plain(value if equals else following)) if is_flag or may_be_verb else None

    def _word_instead(self, word: str) -> str | None:
        """Return the flag, the `key=value` with the value after it, or the recipe that a wrong word means."""
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if flag == name and name not in (*self._keys, *synonyms("keys")):
            if group := next((group for group in GROUPS if takes(group, word)), None):
                return f"{group}={word}"
            alike = recipes.similar(word)
            return f"recipe={alike[-1]}" if alike else None
        own = {option.lstrip("-").replace("-", "_"): option for option in self._options}
        if (similar := nearest(name, [*own, *self._keys])) in own:
            return f"{own[similar]}{equals}{value}"
        if self._keys and flag not in _CONFIG and (line := self._line_instead(word)):
            if not equals and self._left and _is_value(self._left[0]):
                self._left.popleft()
            return line.removeprefix("type ")
        key = "recipe" if flag in _CONFIG else nearest_key(name)
        if not self._keys or key is None:
            return None
        return f"{key}={value if equals else self._value_after(key) or 'VALUE'}"

    def _verb_instead(self, flag: str, name: str, may_be_verb: bool) -> str | None:
        """Return the verb that a wrong word means; None if it means none."""
        if flag in _CFG and self._left and self._left[0] in _PARTS_OF_CFG:
            self._left.popleft()
            return "show"
        if flag in _ELSEWHERE and self._verb in ("run", "plan"):
            return _ELSEWHERE[flag]
        if name in self._parsers:
            return name
        if flag != name or not may_be_verb or name in (*self._keys, *synonyms("keys")):
            return None
        meant = {verb: verb for verb in self._parsers}
        meant |= {other: verb for other, verb in synonyms("verbs").items() if verb in meant}
        return meant.get(nearest(name, meant) or "")


def _plain(text: str) -> Any:
    """Return the value that a text is as YAML; the text if it is none."""
    with suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return text


def _switch(key: str) -> list[str]:
    """Return the values of an on-off key, on first; empty for another key."""
    if key.startswith("algorithms.") and key.count(".") == 1:
        return [*ON_OFF]
    words = choices(key)
    return words if words[:1] in (["true"], ["on"]) else []


def _is_value(word: str) -> bool:
    """Return whether a word is not a flag; a negative number is a value."""
    return not word.startswith("-") or word == "-" or _NUMBER.match(word) is not None
