"""`train completion SHELL`: print the shell code for tab completion, by argcomplete."""

import argparse
import os
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

import argcomplete
from argcomplete.completers import FilesCompleter

from launcher.cli import ls
from launcher.config import recipes
from launcher.config.groups import options
from launcher.config.keys import all_keys, choices, path_keys
from launcher.config.schema import GROUPS, SWITCHED
from launcher.config.validate import ON_OFF

EXAMPLES = ["train completion bash", "train completion zsh", "train completion fish"]
_SHELLS = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=f"one of: {', '.join(_SHELLS)}")


def main(arguments: argparse.Namespace) -> int:
    print(argcomplete.shellcode(["train"], shell=arguments.shell))
    return 0


def complete(verbs: Collection[str], parser_of: Callable[[str], argparse.ArgumentParser]) -> NoReturn:
    """Print the completions at the cursor, as argcomplete's environment variables request, and exit.

    parser_of: returns the parser of a verb.
    """
    typed = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    has_verb = len(typed) > 2 and typed[1] in verbs
    parser = parser_of(typed[1] if has_verb else "run")
    for action in parser._actions:
        if not action.option_strings:
            vars(action)["completer"] = _COMPLETERS.get(str(action.metavar), FilesCompleter())
    if has_verb:
        # note: argcomplete skips as many words, as for `python script.py`
        os.environ["_ARGCOMPLETE"] = "2"
    elif len(typed) == 2:
        parser._actions[-1].__dict__["completer"] = lambda prefix, **_: [*verbs, *words(prefix)]
    argcomplete.autocomplete(parser, always_complete_options="long")
    raise SystemExit


def words(prefix: str, **_: object) -> list[str]:
    """Complete keys by one level, or the values of the key before `=`."""
    key, equals, value = prefix.partition("=")
    if equals:
        return [f"{key}={word}" for word in _values(key, value)]
    return [*dict.fromkeys(_keys(prefix)), *(name for name in recipes.names() if prefix)]


def _keys(prefix: str) -> Iterator[str]:
    level = prefix.count(".") + 1
    for key in ("recipe", *all_keys()):
        parts = key.split(".")
        if key.startswith(prefix) and len(parts) >= level:
            yield ".".join(parts[:level]) + ("." if len(parts) > level else "=")


def _values(key: str, value: str) -> list[str]:
    if key == "recipe":
        return recipes.names()
    if key in GROUPS:
        return options(key)
    group, _, name = key.partition(".")
    if group in SWITCHED and name in options(group):
        return [*ON_OFF]
    if key in path_keys():
        return list(FilesCompleter()(value))
    return choices(key)


# By metavar; argcomplete completes other words with their choices, or with files.
_COMPLETERS = {
    **dict.fromkeys(("key=value", "key=a,b"), words),
    "SECTION": lambda **_: ls.SECTIONS,
    "SHELL": None,
    **dict.fromkeys("AB", lambda prefix, **_: [*recipes.names(), *FilesCompleter()(prefix)]),
}
