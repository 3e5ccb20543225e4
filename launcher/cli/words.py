"""Parse the words of a command line as a verb's options and `key=value`, with a correction for each wrong word."""

import argparse
import re
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher import paths
from launcher.config import code, recipes
from launcher.config.keys import all_keys, choices, nearest_key, synonyms
from launcher.config.overrides import SEARCH_PATH, quoted
from launcher.config.similar import nearest
from launcher.config.validate import ON_OFF
from launcher.errors import Problem, UserError, shown

KEYS = "key="  # the start of the metavar of key=value words

_NUMBER = re.compile(r"-\.?\d")
# Flags of other programs, and the verb that replaces them.
_ELSEWHERE = {
    **dict.fromkeys(("--dry-run", "--dryrun", "--dry", "-n"), "train plan"),
    **dict.fromkeys(("--multirun", "-m"), "train curve"),
}
_CONFIG, _QUIET = ("--config", "--config-name", "--config-file", "-c"), ("--quiet", "--silent", "-q")


def read(parser: argparse.ArgumentParser, verb: str, words: Sequence[str], verbs: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a verb.

    `--key value` is `key=value` for every key, `key = value` too, and the bare name of a recipe is `recipe=NAME`.

    Raises UserError with every other word, and the command line to type instead.
    """
    reading = _Reading(parser, verb, words, verbs)
    positional = [*reading.positional()]
    if reading.problems:
        raise UserError(*reading.problems)
    return parser.parse_args([*reading.own, *(["--"] if positional else []), *positional])


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


def _fixed(parser: argparse.ArgumentParser) -> int:
    """Return the number of positional words that are not key=value."""
    return sum(action.nargs in (None, "?") for action in parser._actions if not action.option_strings)


class _Reading:
    """One pass over the words: a verb's `own` options, the positional words, and the `problems`."""

    def __init__(self, parser: argparse.ArgumentParser, verb: str, words: Sequence[str], verbs: Sequence[str]):
        self.own: list[str] = []
        self.problems: list[Problem] = []
        self._config_dirs: list[Path] = []
        self._verb, self._words, self._verbs, self._parser = verb, words, verbs, parser
        self._left, self._options = deque(words), parser._option_string_actions
        self._keys = (*all_keys(), SEARCH_PATH) if takes_keys(parser) else ()
        self._start = "train" if verb == "run" else f"train {verb}"

    def positional(self) -> Iterator[str]:
        """Yield the positional words, each `key=value` as one word."""
        # note: the first word of a verb such as resume is not key=value
        fixed = _fixed(self._parser)
        while self._left and (word := self._left.popleft()) != "--":
            if word.partition("=")[0] in self._options:
                self._take_own(word)
            elif not _is_value(word):
                yield from self._from_flag(word)
            elif fixed or not self._keys:
                fixed -= 1
                yield word
            else:
                yield from self._from_bare(word)
        yield from self._left

    def _take_own(self, word: str) -> None:
        self.own.append(word)
        action = self._options.get(word)
        if action is not None and action.nargs is None and self._left:
            self.own.append(self._left.popleft())

    def _from_flag(self, word: str) -> Iterator[str]:
        """Yield `key=value` for `--key value`, `--key=value` and `--switch`."""
        name, equals, value = word.lstrip("-").partition("=")
        key = SEARCH_PATH if name == "config-dir" else name.replace("-", "_")
        if key not in self._keys:
            self._refuse(word, f"is not an option of {self._start}")
        elif equals:
            yield self._assigned(key, value)
        elif (following := self._value_after(key)) is not None:
            yield self._assigned(key, following)
        else:
            self.problems.append(Problem(f"{word} needs a value; type {self._start} {word} VALUE, or {key}=VALUE"))

    def _value_after(self, key: str) -> str | None:
        """Take the value that follows a flag; of a switch without one return the first, of another key None."""
        switch = _switch(key)
        if self._left and (self._left[0] in switch or (not switch and _is_value(self._left[0]))):
            return self._left.popleft()
        return switch[0] if switch else None

    def _from_bare(self, word: str) -> Iterator[str]:
        """Yield `key=value` from one word or several, and `recipe=NAME` for a recipe's bare name."""
        name, equals, value = word.partition("=")
        following = self._left[0] if self._left else ""
        if name in self._keys and not equals and following.startswith("="):
            equals, value = "=", self._left.popleft()[1:]
            following = self._left[0] if self._left else ""
        if name in self._keys and equals and not value and "=" not in following and _is_value(following):
            value = self._left.popleft() if self._left else ""
        if equals or word.startswith("~"):
            yield f"{name}{equals}{value}"
        elif self._is_recipe(word):
            yield f"recipe={word}"
        else:
            self._refuse(word, "is neither a verb nor key=value")

    def _assigned(self, key: str, value: str) -> str:
        """Return `key=value`; `--config-dir` adds its folder to Hydra's search path."""
        if key != SEARCH_PATH:
            return f"{key}={value}"
        self._config_dirs.append(Path(value))
        return f"{key}=[{quoted(value)}]"

    def _is_recipe(self, word: str) -> bool:
        with paths.searching(self._config_dirs):
            return word == recipes.AUTO or recipes.find(word) is not None

    def _refuse(self, word: str, reason: str) -> None:
        is_start = self._verb == "run" and word == self._words[0]
        line = self._corrected(word, is_start)
        if is_start or word in self._verbs:
            # note: the remaining words belong to that verb
            self._left.clear()
        instead = f"did you mean {line}?" if line else f"see `{self._start} --help` and `train ls`"
        self.problems.append(Problem(f"{shown(word)} {reason}; {instead}"))

    def _corrected(self, word: str, may_be_verb: bool) -> str | None:
        """Return the corrected command line for a wrong word, with the value after it; None without a similar word."""
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if flag in _ELSEWHERE and self._verb in ("run", "plan"):
            return self._line(_ELSEWHERE[flag], word)
        if flag in _QUIET:
            return f"{self._line(self._start, word)} > run.log"
        if name in self._verbs:
            return self._line(f"train {name}", word)
        if flag == name and name not in (*self._keys, *synonyms("keys")):
            return self._like_a_name(word, may_be_verb)
        own = {option.lstrip("-").replace("-", "_"): option for option in self._options}
        if (similar := nearest(name, [*own, *self._keys])) in own:
            return f"{self._start} {own[similar]}"
        key = "recipe" if flag in _CONFIG else nearest_key(name)
        return self._with_key(word, key, value if equals else None) if self._keys and key else None

    def _like_a_name(self, word: str, may_be_verb: bool) -> str | None:
        """Return the command line with the verb or recipe that is similar to a bare word."""
        if may_be_verb and (verb := self._nearest_verb(word)):
            return self._line(f"train {verb}", word)
        recipe = nearest(word, recipes.names())
        return self._line(f"{self._start} recipe={recipe}", word) if recipe else None

    def _with_key(self, word: str, key: str, value: str | None) -> str:
        """Return the command line with a key for a word, and its value (None: the word after it)."""
        value = self._value_after(key) or "VALUE" if value is None else value
        return self._line(f"{self._start} {shlex.quote(f'{key}={value}')}", word, value)

    def _nearest_verb(self, word: str) -> str | None:
        meant = {verb: verb for verb in self._verbs}
        meant |= {other: verb for other, verb in synonyms("verbs").items() if verb in meant}
        return meant.get(nearest(word, meant) or "")

    def _line(self, start: str, *without: str) -> str:
        """Return the command line with another start and without some words."""
        return shlex.join([*shlex.split(start), *(word for word in self._words if word not in without)])


def _switch(key: str) -> list[str]:
    """Return the values of an on-off key, on first; empty for another key."""
    if key.startswith("algorithms.") and key.count(".") == 1:
        return [*ON_OFF]
    words = choices(key)
    return words if words[:1] in (["true"], ["on"]) else []


def _is_value(word: str) -> bool:
    """Return whether a word is not a flag; a negative number is a value."""
    return not word.startswith("-") or word == "-" or _NUMBER.match(word) is not None
