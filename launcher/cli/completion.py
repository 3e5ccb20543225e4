"""`train completion SHELL`: a script that completes verbs, recipes, groups, keys and values.

What may stand next is derived from what the verbs' own parsers take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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

EXAMPLES = [
    "train completion bash",
    "train completion zsh",
    "train completion fish",
]
_RECIPES = "recipe"
_SHELLS = ("bash", "zsh", "fish")


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
        return _matching(flags, current) + (_flag_words(current) if takes_keys(parser) else [])
    flag = before[-1] if before and takes_keys(parser) else ""
    if flag.startswith("--") and flag not in flags and flag[2:] in all_keys():
        return [word.removeprefix(f"{flag[2:]}=") for word in _run_words(f"{flag[2:]}={current}")]
    found = _matching(cli.VERBS, current) if not before else []
    takes = taken(parser)
    place = sum(not word.startswith("-") for word in (before if verb == "run" else before[1:]))
    if not takes or (place >= len(takes) and not takes[-1].repeated):
        return found
    return found + OFFERS[takes[min(place, len(takes) - 1)].what](current)


@dataclass(frozen=True)
class Taken:
    """A word that a verb takes: what it is, and whether any number of them may follow one another."""

    what: str
    repeated: bool


def taken(parser: argparse.ArgumentParser) -> list[Taken]:
    """The words that a verb takes besides its options, in their order."""
    actions = [action for action in parser._actions if not action.option_strings]
    return [Taken(str(action.metavar), action.nargs in ("*", "+")) for action in actions]


def words_of(line: str) -> tuple[list[str], str]:
    """The words after `train` that are complete, and the one at the cursor."""
    *before, current = line.split() if line and not line[-1].isspace() else [*line.split(), ""]
    names = [Path(word).name for word in before]
    start = names.index("train") + 1 if "train" in names else len(before)
    return before[start:], current


def _run_words(current: str) -> list[str]:
    """Keys, or values of the key that stands before `=`."""
    key, equals, value = current.partition("=")
    found = _values(key, value) if equals else _keys(current)
    return [word for word in found if word.startswith(current)]


def _flag_words(current: str) -> list[str]:
    """Keys and values as flags, such as `--epochs=`."""
    return [f"--{word}" for word in _run_words(current[2:])] if current.startswith("--") else []


def _matching(candidates: Iterable[str], current: str) -> list[str]:
    return [word for word in candidates if word.startswith(current)]


def _run_folders(current: str) -> list[str]:
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
    return [f"{path}/" for path in _paths(prefix, Path.is_dir)]


def _pictures(prefix: str) -> list[str]:
    """Picture files whose path starts so."""
    # note: NumPy, which it imports, takes longer than an answer
    from launcher.data.folder import EXTENSIONS

    return _paths(prefix, lambda path: path.name.lower().endswith(EXTENSIONS))


def _paths(prefix: str, wanted: Callable[[Path], bool]) -> list[str]:
    parent, _, name = prefix.rpartition("/")
    root = Path(f"{parent}/").expanduser() if "/" in prefix else Path()
    shown = f"{parent}/" if "/" in prefix else ""
    try:
        return sorted(f"{shown}{entry.name}" for entry in root.iterdir() if _offered(entry, name) and wanted(entry))
    except OSError:
        return []


def _offered(entry: Path, name: str) -> bool:
    return entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith("."))


# What each word that a verb takes may be, by the name that it has in the verb's help.
OFFERS: dict[str, Callable[[str], list[str]]] = {
    **dict.fromkeys(("key=value", "key=a,b"), _run_words),
    "PICTURE": lambda current: _folders(current) + _pictures(current),
    "RUN": _run_folders,
    "RUNS": _run_folders,
    **dict.fromkeys("AB", lambda current: _run_folders(current) + _matching(recipes.names(), current)),
    "step=N": lambda current: _matching(["step="], current),
    "SECTION": lambda current: _matching(ls.SECTIONS, current),
    "SHELL": lambda current: _matching(_SHELLS, current),
    "SPACE": lambda current: _matching(options("tuning"), current) + _folders(current),
}
