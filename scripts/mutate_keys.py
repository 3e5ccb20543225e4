"""Change the meaning of each number and switch of an option, and print the changes that no test notices.

A key is ignored (its default is used), doubled or floored wherever the code of the product reads it. The tests of the
group run once to record which of them read which value; then those to which a change gives another value run with it,
each time in a fork. A survivor needs a test at a value other than the default, or a reason here.

    .venv/bin/python scripts/mutate_keys.py loss.huber schedule.cosine          # of these options
    .venv/bin/python scripts/mutate_keys.py algorithms                          # of a group: many minutes
"""

import math
import os
import pickle
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.groups import options

ROOT = Path(__file__).resolve().parents[1]
# By group: the folders and files of its tests.
TESTS = {
    "algorithms": ["algorithms", "training/test_every_algorithm.py"],
    "dataloader": ["data"],
    "image": ["data", "training/test_evaluation.py"],
    "loss": ["training/test_class_weights.py", "training/test_targets.py", "tasks", "data/test_imbalance.py"],
    "model": ["models"],
    "optimizer": ["optimizers"],
    "schedule": ["plan"],
    "stop": ["training/test_loop.py"],
    "task": ["tasks"],
}
# Functions of dataclasses and of configs, which read keys without using them.
_READS_ONLY = re.compile(r"__\w+__|as_mapping|problems|notes|_?check\w*|changed|identity")
Change = Callable[[Any, Any], Any]  # (the value, the default) to the value that the code sees
CHANGES: dict[str, Change] = {
    "ignored": lambda value, default: default,
    "doubled": lambda value, default: value if isinstance(value, bool) else 2 * value,
    "floored": lambda value, default: value if isinstance(value, bool) else type(value)(math.floor(value)),
}
# By class and key: the values that each test reads.
Reads = dict[tuple[type, str], dict[str, list[Any]]]


def mutate(kind: type, change: Callable[[str, Any], Any]) -> None:
    """Make the code of the product read what `change` returns for a key and a number of it."""

    def changed(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name.startswith("_") or not isinstance(value, bool | int | float):
            return value
        reader = sys._getframe(1)
        is_use = reader.f_globals["__name__"].startswith("launcher.") and not _READS_ONLY.fullmatch(
            reader.f_code.co_name
        )
        return change(name, value) if is_use else value

    kind.__getattribute__ = changed  # type: ignore[method-assign, assignment]


def in_fork(tests: Sequence[str], before: Callable[[], object], after: Callable[[], object] | None = None) -> bool:
    """Return whether all tests pass in a fork of this process that calls a function before and one after them."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        before()
        exits = [] if after else ["-x"]
        code = int(pytest.main(["-q", *exits, "-p", "no:cacheprovider", "-m", "not system", "--timeout=120", *tests]))
        if after:
            after()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def names_of(group: str) -> Sequence[str]:
    """Return the options of a group; one without a name for a section of the config."""
    return options(group) or [""]


def values_of(group: str, option: str) -> Any:
    """Return the values of an option, or of a section without options, at their defaults."""
    if group == "algorithms":
        return compose([f"algorithms.{option}=on"]).config.algorithms[option]
    return getattr(compose([f"{group}={option}"] if option else []).config, group)


def reads(tests: Sequence[str], kinds: Sequence[type]) -> Reads:
    """Return which tests read which values of the classes."""
    recorded: Reads = defaultdict(lambda: defaultdict(list))

    def watch() -> None:
        for kind in kinds:
            mutate(kind, partial(record, kind))

    def record(kind: type, key: str, value: Any) -> Any:
        test, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
        if test and value not in recorded[kind, key][test]:
            recorded[kind, key][test].append(value)
        return value

    with tempfile.TemporaryFile() as file:

        def write() -> None:
            # note: a fork has the same classes, but not all can be pickled
            numbered = {(kinds.index(kind), key): dict(tests) for (kind, key), tests in recorded.items()}
            pickle.dump(numbered, file)
            file.flush()

        if not in_fork(tests, watch, write):
            print(f"{' '.join(tests)}: some fail without a change", flush=True)
        file.seek(0)
        return {(kinds[number], key): tests for (number, key), tests in pickle.load(file).items()}


def survivors(group: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the changes of the keys of options that no test notices, with the number of tests that read the key."""
    tests = [str(ROOT / "tests" / name) for name in TESTS[group]]
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *tests])  # note: imports, before the forks
    all_values = {name: values_of(group, name) for name in names}
    recorded = reads(tests, [type(values) for values in all_values.values()])
    for option, values in all_values.items():
        for key in (field.name for field in fields(values)):
            default, by_test = getattr(values, key), recorded.get((type(values), key), {})
            for name, change in CHANGES.items() if isinstance(default, bool | int | float) else ():
                other = [test for test, seen in by_test.items() if any(change(one, default) != one for one in seen)]
                if isinstance(default, {"ignored": (), "doubled": bool, "floored": int}[name]):
                    continue  # note: which has no such change
                if not other or in_fork(other, partial(mutate, type(values), partial(at, key, change, default))):
                    yield f"{group}.{option}.{key} {name}: {len(other)} of the {len(by_test)} tests that read it see it"
        yield f"done: {group}.{option}"


def at(key: str, change: Change, default: Any, name: str, value: Any) -> Any:
    return change(value, default) if name == key else value


def main(words: list[str]) -> None:
    """Print the survivors of the options that the words name, each as soon as it is found."""
    for word in words:
        group, _, option = word.partition(".")
        for line in survivors(group, [option] if option else names_of(group)):
            print(line, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import torch  # note: once, before the forks

    torch.set_num_threads(1)
    main(sys.argv[1:])
