"""`train completion SHELL`: a script that completes verbs, recipes, groups, keys and values."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.cli import ls
from launcher.cli import main as cli
from launcher.cli.words import takes_keys
from launcher.config import recipes
from launcher.config.compose import OFF, ON
from launcher.config.defaults import options
from launcher.config.keys import all_keys, choices, did_you_mean, path_keys
from launcher.config.schema import GROUPS
from launcher.errors import Problem, UserError

_RECIPES = "recipe"


def words_of(line: str) -> tuple[list[str], str]:
    """The words after `train` that are complete, and the one at the cursor."""
    *before, current = line.split() if line and not line[-1].isspace() else [*line.split(), ""]
    names = [Path(word).name for word in before]
    start = names.index("train") + 1 if "train" in names else len(before)
    return before[start:], current


def run_words(current: str) -> list[str]:
    """Keys, or values of the key that stands before `=`."""
    key, equals, value = current.partition("=")
    found = _values(key, value) if equals else _keys(current)
    return [word for word in found if word.startswith(current)]


def flag_words(current: str) -> list[str]:
    """Keys and values as flags, such as `--epochs=`."""
    return [f"--{word}" for word in run_words(current[2:])] if current.startswith("--") else []


def matching(candidates: Sequence[str] | Mapping[str, object], current: str) -> list[str]:
    return [word for word in candidates if word.startswith(current)]


def run_folders(current: str) -> list[str]:
    """Run folders, and the folders on the way to them."""
    return [path if not (Path(path) / "config.yaml").is_file() else path.rstrip("/") for path in _folders(current)]


def _keys(prefix: str) -> list[str]:
    """Keys one level below the dots that are typed: `key=`, and `key.` where there are more below."""
    level = prefix.count(".")
    found: dict[str, None] = {}
    for key in all_keys():
        parts = key.split(".")
        if len(parts) <= level or (prefix and not key.startswith(prefix)):
            continue
        head = ".".join(parts[: level + 1])
        found[f"{head}." if len(parts) > level + 1 else f"{head}="] = None
    return [word for word in found if word not in ("image=", "algorithms=")]


def _values(key: str, value: str) -> list[str]:
    group = key.removesuffix(".name")
    if key == _RECIPES:
        found = recipes.names()
    elif group in GROUPS:
        found = options(group)
    elif key.removeprefix("algorithms.") in options("algorithms"):
        found = [ON, OFF]
    elif key in path_keys():
        found = _folders(value)
    else:
        found = choices(key)
    return [f"{key}={word}" for word in found]


def _folders(prefix: str) -> list[str]:
    """Folders whose path starts so, each with a slash."""
    parent, _, name = prefix.rpartition("/")
    root = Path(f"{parent}/").expanduser() if "/" in prefix else Path()
    shown = f"{parent}/" if "/" in prefix else ""
    try:
        return sorted(f"{shown}{entry.name}/" for entry in root.iterdir() if _offered(entry, name))
    except OSError:
        return []


def _offered(entry: Path, name: str) -> bool:
    return entry.name.startswith(name) and entry.is_dir() and (name.startswith(".") or not entry.name.startswith("."))


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
    print(Path(__file__).with_name(f"train.{shell}").read_text(), end="")
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
