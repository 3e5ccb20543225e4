"""Change the meaning of each number and switch of an option, and print the changes that its tests do not notice.

A key is ignored (its default is used), doubled or floored wherever the code of the product reads it; the test file that
names the option most often runs for each. A survivor needs a test at a value other than the default, or a reason.

    .venv/bin/python scripts/mutate_keys.py losses.huber schedules.cosine       # of these options
    .venv/bin/python scripts/mutate_keys.py algorithms                          # of a group, for hours
"""

import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.groups import options

ROOT = Path(__file__).resolve().parents[1]
# By package: the group of its options, and the folders of their tests.
GROUPS = {
    "algorithms": ("algorithms", ["algorithms"]),
    "losses": ("loss", ["training", "tasks", "data"]),
    "models": ("model", ["models"]),
    "optimizers": ("optimizer", ["optimizers"]),
    "schedules": ("schedule", ["plan"]),
    "tasks": ("task", ["tasks"]),
}
# Functions of dataclasses and of configs, which read keys without using them.
_READS_ONLY = re.compile(r"__\w+__|as_mapping|problems|notes|_?check\w*|changed|identity")
Change = Callable[[Any, Any], Any]  # (the value, the default) to the value that the code sees
CHANGES: dict[str, Change] = {
    "ignored": lambda value, default: default,
    "doubled": lambda value, default: value if isinstance(value, bool) else 2 * value,
    "floored": lambda value, default: value if isinstance(value, bool) else type(value)(math.floor(value)),
}


def mutate(kind: type, key: str, change: Change, default: Any) -> None:
    """Make the code of the product read another value of a key."""

    def changed(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name != key or not isinstance(value, bool | int | float):
            return value
        reader = sys._getframe(1)
        is_use = reader.f_globals["__name__"].startswith("launcher.") and not _READS_ONLY.fullmatch(
            reader.f_code.co_name
        )
        return change(value, default) if is_use else value

    kind.__getattribute__ = changed  # type: ignore[method-assign, assignment]


def survives(tests: str, kind: type, key: str, change: Change, default: Any) -> bool:
    """Return whether all tests pass with a changed key, in a fork of this process."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        mutate(kind, key, change, default)
        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not system", tests])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def values_of(group: str, option: str) -> Any:
    """Return the values of an option at its defaults."""
    if group == "algorithms":
        return compose([f"algorithms.{option}=on"]).config.algorithms[option]
    return getattr(compose([f"{group}={option}"]).config, group)


def tests_of(folders: list[str], option: str) -> str:
    """Return the test file of an option: that of its name, or else that which names it most often."""
    paths = [path for folder in folders for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    return str(max(paths, key=lambda path: (path.stem == f"test_{option}", path.read_text().count(option))))


def survivors(package: str, option: str) -> Iterator[str]:
    """Yield the changes of an option's keys that its tests do not notice."""
    group, folders = GROUPS[package]
    values, tests = values_of(group, option), tests_of(folders, option)
    assert survives(tests, type(values), "", CHANGES["ignored"], None), f"{tests} fails without a change"
    for key in (field.name for field in fields(values)):
        default = getattr(values, key)
        if isinstance(default, bool | int | float):
            for name, change in CHANGES.items():
                if isinstance(default, bool) and name != "ignored":
                    continue
                if survives(tests, type(values), key, change, default):
                    yield f"{package}.{option}.{key} {name}"


def main(words: list[str]) -> None:
    """Print the survivors of the options that the words name, each as soon as it is found."""
    for word in words:
        package, _, option = word.partition(".")
        for one in [option] if option else options(GROUPS[package][0]):
            for line in survivors(package, one):
                print(line, flush=True)
            print(f"done: {package}.{one}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    import torch  # note: once, before the forks

    torch.set_num_threads(1)
    main(sys.argv[1:])
