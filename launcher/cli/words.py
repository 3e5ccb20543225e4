"""Words as people type them, to a verb's own options and `key=value` words; what has no plain meaning is answered."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from launcher import paths
from launcher.config import recipes
from launcher.config.keys import all_keys, choices, nearest, nearest_key
from launcher.config.overrides import SEARCH_PATH, quoted
from launcher.errors import Problem, UserError, shown

KEYS = "key="  # note: begins the metavar of a verb's key=value words

_NUMBER = re.compile(r"-\.?\d")
_DRY, _SEVERAL = ("--dry-run", "--dryrun", "--dry", "-n"), ("--multirun", "-m")
_CONFIG, _QUIET = ("--config", "--config-name", "--config-file", "-c"), ("--quiet", "--silent", "-q")


def read(parser: argparse.ArgumentParser, verb: str, words: Sequence[str], verbs: Sequence[str]) -> argparse.Namespace:
    """The arguments of a verb.

    `--key value` is `key=value` for every key, `key = value` too, and the bare name of a recipe is `recipe=NAME`.

    Raises:
        UserError: with every word that is none of these, and the line to type instead where there is one.
    """
    reading = _Reading(parser, verb, words, verbs)
    if reading.problems:
        raise UserError(*reading.problems)
    positional = ["--", *reading.positional] if reading.positional else []
    return parser.parse_args([*reading.own, *positional])


def takes_keys(parser: argparse.ArgumentParser) -> bool:
    """Whether a verb takes `key=value` words."""
    return any(KEYS in str(action.metavar) for action in parser._actions if not action.option_strings)


class _Reading:
    """One pass over the words: a verb's `own` options, the `positional` words, and the `problems` met."""

    def __init__(self, parser: argparse.ArgumentParser, verb: str, words: Sequence[str], verbs: Sequence[str]):
        self.own: list[str] = []
        self.positional: list[str] = []
        self.problems: list[Problem] = []
        self._config_dirs: list[Path] = []
        self._verb, self._words, self._verbs, self._options = verb, words, verbs, parser._option_string_actions
        self._takes_keys = takes_keys(parser)
        self._start = " ".join(["train", *([verb] if verb != "run" else [])])
        left = deque(words)
        bare: list[str] = []
        while left and (word := left.popleft()) != "--":
            if self._is_own(word):
                self._take_own(word, left)
            elif word.startswith("-") and not _is_value(word):
                bare += self._from_flag(word, left) if self._takes_keys else self._no_option(word, left)
            else:
                bare.append(word)
        if not self._takes_keys:
            self.positional = [*bare, *left]
            return
        # note: of a verb such as resume the first word is no key=value
        named = sum(action.nargs in (None, "?") for action in parser._actions if not action.option_strings)
        bare = _joined(bare)
        self.positional = [*bare[:named], *self._named(bare[named:]), *left]

    def _is_own(self, word: str) -> bool:
        short = self._options.get(word[:2]) if not word.startswith("--") else None
        return word.partition("=")[0] in self._options or (short is not None and short.nargs is None)

    def _take_own(self, word: str, left: deque[str]) -> None:
        self.own.append(word)
        action = self._options.get(word)
        if action is not None and action.nargs is None and left:
            self.own.append(left.popleft())

    def _from_flag(self, word: str, left: deque[str]) -> list[str]:
        """`--key value`, `--key=value` and `--switch` as a word `key=value`."""
        name, equals, value = word.lstrip("-").partition("=")
        key = SEARCH_PATH if name == "config-dir" else name.replace("-", "_")
        if key not in (*all_keys(), SEARCH_PATH):
            return self._no_option(word, left)
        if equals:
            return [self._assigned(key, value)]
        switch = _switch(key)
        if left and (left[0] in switch or (not switch and _is_value(left[0]))):
            return [self._assigned(key, left.popleft())]
        if switch:
            return [f"{key}={switch[0]}"]
        self.problems.append(Problem(f"{word} has no value; type {self._start} {word} VALUE, or {key}=VALUE"))
        return []

    def _assigned(self, key: str, value: str) -> str:
        """`key=value`; a folder of `--config-dir` is one of Hydra's search path."""
        if key != SEARCH_PATH:
            return f"{key}={value}"
        self._config_dirs.append(Path(value))
        return f"{key}=[{quoted(value)}]"

    def _no_option(self, word: str, left: deque[str]) -> list[str]:
        """A problem with the line that was meant; a value that follows belongs to what it is about."""
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        own = {option.lstrip("-").replace("-", "_"): option for option in self._options}
        close = nearest(name, [*own, *(all_keys() if self._takes_keys else ())])
        if self._verb in ("run", "plan") and flag in (*_DRY, *_SEVERAL):
            line = self._line("train plan" if flag in _DRY else "train curve", word)
        elif flag in _QUIET:
            line = f"{self._line(self._start, word)} > run.log"
        elif name in self._verbs:
            line = self._line(f"train {name}", word)
            left.clear()
        elif close in own:
            line = f"{self._start} {own[close]}"
        elif self._takes_keys and (key := "recipe" if flag in _CONFIG else nearest_key(name)):
            value = value if equals else left.popleft() if left and _is_value(left[0]) else "VALUE"
            line = self._line(f"{self._start} {shlex.quote(f'{key}={value}')}", word, value)
        else:
            line = f"{self._start} --help, which lists those that there are"
        self.problems.append(Problem(f"{shown(word)} is no option of {self._start}; type {line}"))
        return []

    def _named(self, words: Sequence[str]) -> list[str]:
        """The words, a recipe's bare name as `recipe=NAME`; a problem for each that says nothing."""
        found: list[str] = []
        left = deque(words)
        while left:
            word = left.popleft()
            if "=" in word or word.startswith("~"):
                found.append(word)
            elif word in all_keys():
                value = left.popleft() if left and "=" not in left[0] else "VALUE"
                line = self._line(f"{self._start} {shlex.quote(f'{word}={value}')}", word, value)
                self.problems.append(Problem(f"{word} is a key, and has its value after a =; type {line}"))
            elif self._is_recipe(word):
                found.append(f"recipe={word}")
            else:
                self.problems.append(Problem(f"{shown(word)} is no verb and no key=value; {self._instead(word)}"))
                if self._may_be_verb(word) and not any("=" in other for other in self._words):
                    # note: what follows are the words of a verb that is not installed
                    self.problems = self.problems[-1:]
                    return []
        return found

    def _is_recipe(self, word: str) -> bool:
        with paths.searching(self._config_dirs):
            return recipes.is_known(word)

    def _may_be_verb(self, word: str) -> bool:
        return self._verb == "run" and word == self._words[0] and word.isidentifier()

    def _instead(self, word: str) -> str:
        """The line that was meant by one with a word that is neither verb, recipe nor key=value."""
        if word in self._verbs:
            return f"the verb comes first: {self._line(f'train {word}', word)}"
        verbs = self._verbs if self._may_be_verb(word) else ()
        close = nearest(word, [*verbs, *recipes.names()])
        if close is None:
            return "`train --help` lists the installed verbs, `train ls` the recipes"
        if close in verbs:
            return f"did you mean {self._line(f'train {close}', word)}? `train --help` lists the installed verbs"
        return f"did you mean {self._line(f'{self._start} recipe={close}', word)}?"

    def _line(self, start: str, *without: str) -> str:
        """The command line once more, without some words."""
        return shlex.join([*shlex.split(start), *(word for word in self._words if word not in without)])


def _switch(key: str) -> list[str]:
    """The words among which the value of an on-off key is, the first being on; empty for another key."""
    if key.startswith("algorithms.") and key.count(".") == 1:
        return ["on", "off"]
    found = choices(key)
    return found if found[:1] in (["true"], ["on"]) else []


def _is_value(word: str) -> bool:
    """Whether a word is no flag: a negative number is none."""
    return not word.startswith("-") or word == "-" or _NUMBER.match(word) is not None


def _joined(words: Sequence[str]) -> list[str]:
    """`key = value` in one word, where its parts are words of their own."""
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        opened = before.endswith("=") and before.count("=") == 1 and "=" not in word
        if (opened and before[:-1] in all_keys()) or (word.startswith("=") and before in all_keys()):
            found[-1] += word
        else:
            found.append(word)
    return found
