"""Change the meaning of each key of an option, and print the changes that no test notices.

A key is ignored (its default is used), doubled or floored wherever the code of the product reads it; of texts only
durations have numbers. The tests of the group run once to record which of them would read another value, and how long
they take; then each change runs with these, the shortest first, in a fork. A key that options inherit is one key. A
survivor needs a test at a value other than the default, or a reason in scripts/mutate_keys.yaml.

    .venv/bin/python scripts/mutate_keys.py loss.huber schedule.cosine          # of these options
    .venv/bin/python scripts/mutate_keys.py algorithms                          # of a group: many minutes
"""

import math
import os
import pickle
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from launcher.config.compose import compose
from launcher.config.groups import options
from launcher.config.schema import GROUPS
from launcher.submit.job import read_values
from launcher.submit.kubernetes import Kubernetes
from launcher.submit.sky import Sky
from launcher.submit.slurm import Slurm

ROOT = Path(__file__).resolve().parents[1]
VALUES = yaml.safe_load((ROOT / "scripts" / "mutate_keys.yaml").read_text())
TESTS: dict[str, list[str]] = VALUES["tests"]
REASONS: dict[str, str] = VALUES["reasons"]
# Functions of dataclasses and of configs, which read keys without using them.
_LOOKS = re.compile(r"__(eq|hash|repr|post_init)__|as_mapping|problems|notes|_?check\w*|changed|identity")
# Functions of the standard library that read keys for those who call them.
_COPIES = ("asdict", "_asdict_inner")
_SECTIONS = (*GROUPS, "algorithms", "image", "stop", "checkpoint", "nonfinite")
_SUBMIT = {"kubernetes": Kubernetes, "sky": Sky, "slurm": Slurm}
_DURATION = re.compile(r"([\d.]+)(ba|ep|dur)")
# What the launcher writes, and the names by which it finds an option.
_NOT_SET = {"name", "weights_sha256", "teacher_sha256", "code_sha256"}


@dataclass(frozen=True)
class Kind:
    """A class of values: its place in the config, the group's, its defaults, and which keys it inherits.

    What code in the option's own file reads of an inherited key is a key of this option, the rest one of the group.
    """

    place: str
    group: str
    module: str
    defaults: dict[str, Any]
    inherited: frozenset[str]

    def label(self, key: str, module: str) -> str:
        """Return the name of a key as a module reads it."""
        return f"{self.group if key in self.inherited and module != self.module else self.place}.{key}"


def scaled(value: Any, change: Callable[[float], float]) -> Any:
    """Change the numbers of a value: itself, those of a list, or that of a duration."""
    if isinstance(value, list):
        return [scaled(one, change) for one in value]
    if isinstance(value, str) and (duration := _DURATION.fullmatch(value)):
        return f"{change(float(duration[1])):g}{duration[2]}"
    return type(value)(change(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


# By name: (the value, the default) to the value that the code sees.
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "ignored": lambda value, default: default,
    "doubled": lambda value, default: scaled(value, lambda number: 2 * number),
    "floored": lambda value, default: scaled(value, math.floor),
}


def mutate(kind: type, see: Callable[[str, Any, str], Any]) -> None:
    """Make the code of the product read what a function returns for key, value and the module that reads."""

    def changed(self: Any, key: str) -> Any:
        value = object.__getattribute__(self, key)
        reader = sys._getframe(1)
        while reader.f_code.co_name in _COPIES and reader.f_back:
            reader = reader.f_back
        module: str = reader.f_globals["__name__"]
        if callable(value) or not module.startswith("launcher") or _LOOKS.fullmatch(reader.f_code.co_name):
            return value
        if key == "__dict__":
            return {name: see(name, one, module) for name, one in value.items()}
        return value if key.startswith("_") else see(key, value, module)

    kind.__getattribute__ = changed  # type: ignore[method-assign, assignment]


def mutate_label(kinds: Mapping[type, Kind], label: str, change: str) -> None:
    """Change what the code of the product reads of one key."""
    for kind, of in kinds.items():

        def see(key: str, value: Any, module: str, of: Kind = of) -> Any:
            is_key = key in of.defaults and of.label(key, module) == label
            return CHANGES[change](value, of.defaults[key]) if is_key else value

        mutate(kind, see)


def in_fork(work: Callable[[], bool]) -> bool:
    """Return what a function returns in a fork of this process, in silence."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def values_of(group: str, option: str) -> Any:
    """Return the values of an option, or of a section without options, at their defaults."""
    if group == "submit":
        return read_values(_SUBMIT[option], [])
    if group == "algorithms":
        return compose([f"algorithms.{option}=on"]).config.algorithms[option]
    config = compose([f"{group}={option}"] if option else []).config
    return config if group == "run" else getattr(config, group)


def names_of(group: str) -> Sequence[str]:
    """Return the options of a group; one without a name for a section of the config."""
    return [*_SUBMIT] if group == "submit" else options(group) or [""]


def kinds_of(group: str, only: str = "") -> dict[type, Kind]:
    """Return the classes of values of a group, or of one option of it, with the sections in them."""
    parts: dict[type, dict[str, Any]] = defaultdict(dict)
    for option in [only] if only else names_of(group):
        values = values_of(group, option)
        place = f"{group}.{option}" if option else group
        parts[type(values)].setdefault(place, values)
        for key, part in vars(values).items() if group != "run" else ():
            if is_dataclass(part):
                parts[type(part)].setdefault(f"{place}.{key}", part)
    return {kind: _kind(kind, group, by_place) for kind, by_place in parts.items()}


def _kind(kind: type, group: str, by_place: Mapping[str, Any]) -> Kind:
    (place, values), *others = by_place.items()
    if others:  # note: a class of several options, such as the ResNets
        place = ".".join([group, *place.split(".")[2:]])
    skipped = {*_NOT_SET, *(_SECTIONS if group == "run" else ())}
    defaults = {field.name: getattr(values, field.name) for field in fields(values) if field.name not in skipped}
    own = vars(kind).get("__annotations__", {})
    sections = [key for key, default in defaults.items() if is_dataclass(default)]
    defaults = {key: default for key, default in defaults.items() if key not in sections}
    return Kind(place, group, kind.__module__, defaults, frozenset(defaults) - frozenset(own))


def changes(kinds: Mapping[type, Kind], seen: Mapping[str, Mapping[str, Collection[str]]]) -> Iterator[tuple[str, str]]:
    """Yield the keys and changes to try: an inherited key where tests read it, numbers of what has numbers."""
    every: dict[str, list[Any]] = defaultdict(list)
    for of in kinds.values():
        for key, default in of.defaults.items():
            labels = [of.label(key, of.module), of.label(key, "")]
            for label in {label for label in labels if label in seen} or labels[-1:]:
                every[label].append(default)
    for label, defaults in every.items():
        numbers = {type(one) for default in defaults for one in numbers_of(default)}
        is_changed = {"ignored": True, "doubled": bool(numbers), "floored": float in numbers}
        yield from ((label, change) for change in CHANGES if is_changed[change] or seen.get(label, {}).get(change))


def numbers_of(value: Any) -> list[float]:
    """Return the numbers of a value: itself, those of a list, or that of a duration."""
    if isinstance(value, list):
        return [number for one in value for number in numbers_of(one)]
    duration = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return [value] if type(value) in (int, float) else [float(duration[1])] if duration else []


class Mutation:
    """A plugin of pytest that runs the collected tests as they are, and some of them with each change of a key."""

    def __init__(self, kinds: Mapping[type, Kind], survives: Callable[[str, str, int], None]):
        self._kinds, self._survives = kinds, survives
        self._test = ""
        self._seconds: dict[str, float] = {}
        self._seen: dict[str, dict[str, set[str]]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Report the changes that no test notices, with the number of tests that see them."""
        items = {item.nodeid: item for item in session.items}
        with tempfile.TemporaryFile() as file:
            in_fork(lambda: self._record(session.items, file))
            file.seek(0)
            self._seconds, self._seen = pickle.load(file)
        for label, change in changes(self._kinds, self._seen):
            seen = self._seen.get(label, {}).get(change, set())
            # note: a test that fails without a change notices none
            passing = sorted(
                (self._seconds[test], test) for test in seen if self._seconds.get(test, math.inf) < math.inf
            )
            tests = [items[test] for _, test in passing]
            if not in_fork(lambda label=label, change=change, tests=tests: self._notice(label, change, tests)):
                self._survives(label, change, len(tests))
        return True

    def _record(self, items: Sequence[pytest.Item], file: IO[bytes]) -> bool:
        """Run all tests, and write their times, and which changes of which keys they would see."""
        for kind, of in self._kinds.items():
            mutate(kind, partial(self._see, of))
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        pickle.dump((self._seconds, self._seen), file)
        file.flush()
        return True

    def _see(self, of: Kind, key: str, value: Any, module: str) -> Any:
        if key in of.defaults:
            by_change = self._seen.setdefault(of.label(key, module), {change: set() for change in CHANGES})
            for change, tests in by_change.items():
                if CHANGES[change](value, of.defaults[key]) != value:
                    tests.add(self._test)
        return value

    def _notice(self, label: str, change: str, items: Sequence[pytest.Item]) -> bool:
        """Return whether a test fails with a changed key."""
        mutate_label(self._kinds, label, change)
        for item in items:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._seconds[item.nodeid] == math.inf:
                return True
        return False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self._seconds.get(report.nodeid, 0)
        self._seconds[report.nodeid] = math.inf if report.failed else before + report.duration


def main(words: list[str]) -> int:
    """Print the survivors without a reason of the named options, or of all; return whether there are any."""
    by_tests: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for word in words or TESTS:
        by_tests[tuple(TESTS[word.partition(".")[0]])].append(word)
    return sum(print_survivors(names, tests) for tests, names in by_tests.items()) > 0


def print_survivors(names: Sequence[str], tests: Sequence[str]) -> int:
    """Print each survivor of the named options as soon as it is found; return how many have no reason."""
    start, counts = time.monotonic(), Counter[bool]()

    def survives(label: str, change: str, seen: int) -> None:
        explained = label in REASONS or f"{label} {change}" in REASONS
        counts[explained] += 1
        if not explained:
            print(f"{label} {change}: {seen} tests see it", flush=True)

    kinds = {kind: of for name in names for kind, of in kinds_of(*name.split(".")).items()}
    # note: the forks' own output goes nowhere
    fixed = ["-qq", "-s", "-p", "no:cacheprovider", "-p", "no:warnings", "-m", "not system", "--timeout=300"]
    pytest.main([*fixed, *(str(ROOT / "tests" / name) for name in tests)], plugins=[Mutation(kinds, survives)])
    minutes = (time.monotonic() - start) / 60
    print(f"{' '.join(names)}: {minutes:.1f} minutes, {counts[True]} survivors with a reason", flush=True)
    return counts[False]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import torch  # note: once, before the forks

    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
