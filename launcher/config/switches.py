"""Which algorithms are on: Hydra's list of options, with `algorithms.X=on|off` and values of one as changes to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.config.groups import files
from launcher.config.keys import did_you_mean, nearest
from launcher.config.layers import COMMAND_LINE
from launcher.config.overrides import OFF, Assignment
from launcher.config.validate import ON_OFF
from launcher.config.yaml_file import package
from launcher.errors import Problem, Problems

ON = "on"
_GROUP = "algorithms"


class Switches:
    """The algorithms that are on after some files, each laid over those before it, and the words of a command line.

    Of each file that is the list of its defaults list, None if it has none, and what its body has under `algorithms`.
    """

    def __init__(self, parts: Iterable[tuple[Any, Any]]):
        self._files = files(_GROUP)
        self._of_recipe: list[str] = []
        self._on: set[str] = set()
        self._mentioned: set[str] = set()
        self._values: dict[str, list[Assignment]] = {}
        for listed, stated in parts:
            if isinstance(listed, list):
                self._of_recipe = [str(option) for option in listed]
                self._on = {self._algorithm(option) for option in self._of_recipe}
            self._read(stated)
        self._listed = list(self._of_recipe)

    @property
    def active(self) -> set[str]:
        return self._on

    def apply(self, given: Sequence[Assignment], problems: Problems) -> None:
        """Follow the words in their order; a problem for each that names no algorithm, or says neither on nor off."""
        for assignment in given:
            head, _, rest = assignment.key.partition(".")
            if head != _GROUP:
                continue
            name, _, below = rest.partition(".")
            if not name:
                self._choose(assignment, problems)
            elif name not in self._files:
                message = f"no such algorithm; {did_you_mean(name, self._files)}"
                problems.append(Problem(message, f"{_GROUP}.{name}", assignment.value, COMMAND_LINE))
            elif below or isinstance(assignment.value, Mapping):
                self._turn_on(name)
                self._values.setdefault(name, []).append(assignment)
            elif assignment.value in (ON, True):
                self._turn_on(name)
            elif assignment.value in (OFF, False, None):
                self._on.discard(self._algorithm(name))
                self._values.pop(name, None)
            else:
                like = nearest(str(assignment.value), ON_OFF)
                message = f"must be on, off, or a mapping of values{f'; did you mean {like}?' if like else ''}"
                problems.append(Problem(message, assignment.key, assignment.value, COMMAND_LINE))

    def choice(self) -> list[str]:
        """The override of Hydra's list of options, if the recipe's is not what it is in the end."""
        listed = {self._algorithm(option) for option in self._listed}
        # note: first, so that the options that were chosen have the last word on their values
        more = sorted(name for name in self._on - listed if name in self._files)
        chosen = [*more, *self._listed]
        return [f"{_GROUP}=[{','.join(chosen)}]"] if chosen != self._of_recipe else []

    def off(self) -> list[str]:
        """The overrides by null that turn off what files have values for."""
        listed = {self._algorithm(option) for option in self._listed}
        return [f"++{_GROUP}.{name}=null" for name in sorted((self._mentioned | listed) - self._on)]

    def values(self) -> list[Assignment]:
        """The words that give values to algorithms that are on."""
        return [word for name, words in self._values.items() if name in self._on for word in words]

    def _choose(self, assignment: Assignment, problems: Problems) -> None:
        """Just the algorithms of a list."""
        value = [] if assignment.value in (OFF, None, False, {}) else assignment.value
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            message = "must be a list of names such as [ema,blurpool]; values are words such as algorithms.sam.rho=0.1"
            problems.append(Problem(message, _GROUP, assignment.value, COMMAND_LINE))
            return
        for name in set(names) - self._files.keys():
            message = f"no such algorithm; {did_you_mean(name, self._files)}"
            problems.append(Problem(message, f"{_GROUP}.{name}", ON, COMMAND_LINE))
        self._listed = [name for name in dict.fromkeys(names) if name in self._files]
        self._on = {self._algorithm(option) for option in self._listed}
        self._values.clear()

    def _turn_on(self, option: str) -> None:
        algorithm = self._algorithm(option)
        if algorithm != option and option not in self._listed:
            self._listed.append(option)
        self._on.add(algorithm)

    def _algorithm(self, option: str) -> str:
        """The algorithm that an option has values for: its file's name, unless its `# @package` line says another."""
        path = self._files.get(option)
        at = package(path) if path is not None else None
        return (at or option).removeprefix(f"{_GROUP}.")

    def _read(self, stated: Any) -> None:
        """What a file's body turns on, by giving it values, or off, by null."""
        for name, value in stated.items() if isinstance(stated, Mapping) else ():
            self._mentioned.add(str(name))
            if value is None:
                self._on.discard(str(name))
            elif isinstance(value, Mapping):
                self._on.add(str(name))
