"""`train completion SHELL`: a script that completes verbs, recipes, groups, keys and values."""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher import completion
from launcher.cli import ls
from launcher.cli import main as cli
from launcher.cli.words import takes_keys
from launcher.completion.answer import flag_words, matching, run_folders, run_words, words_of
from launcher.config import recipes
from launcher.config.keys import all_keys, did_you_mean
from launcher.errors import Problem, UserError

EXAMPLES = [
    "train completion bash",
    "train completion zsh",
    "train completion fish",
]
_SHELLS = ("bash", "zsh", "fish")
_OF_RUNS = ("resume", "eval", "export", "diff", "compare", "report")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=f"one of: {', '.join(_SHELLS)}")
    parser.add_argument("--line", metavar="LINE", help="what may stand next on this command line; asked by the scripts")


def main(arguments: argparse.Namespace) -> int:
    if arguments.line is not None:
        print("\n".join(answer(arguments.line)))
        return 0
    shell = arguments.shell
    if shell is None:
        raise UserError(f"name a shell: train completion {'|'.join(_SHELLS)}")
    if shell not in _SHELLS:
        raise UserError(Problem(f"no such shell; {did_you_mean(shell, _SHELLS)}", "completion", shell))
    print((Path(completion.__path__[0]) / f"train.{shell}").read_text(), end="")
    return 0


def answer(line: str) -> list[str]:
    """The words that may stand at the end of a command line."""
    before, current = words_of(line)
    verb = before[0] if before and before[0] in cli.VERBS else "run"
    parser = cli.parser_of(verb, cli.module_of(verb))
    flags = sorted(flag for action in parser._actions for flag in action.option_strings)
    if current.startswith("-"):
        return matching(flags, current) + (flag_words(current) if takes_keys(parser) else [])
    flag = before[-1] if before and takes_keys(parser) else ""
    if flag.startswith("--") and flag not in flags and flag[2:] in all_keys():
        return [word.removeprefix(f"{flag[2:]}=") for word in run_words(f"{flag[2:]}={current}")]
    found = matching(cli.VERBS, current) if not before else []
    if verb in _OF_RUNS and not (takes_keys(parser) and before[1:]):
        found += run_folders(current)
    elif takes_keys(parser):
        found += run_words(current)
    if verb == "diff":
        found += matching(recipes.names(), current)
    elif verb in ("ls", "completion"):
        found += matching({"ls": ls.SECTIONS, "completion": _SHELLS}[verb], current)
    return found
