"""Turn algorithms, callbacks and metrics on and off by config files, and then by words."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from launcher.config.groups import files
from launcher.config.keys import line_instead, synonyms
from launcher.config.layers import COMMAND_LINE, Layer, mapping
from launcher.config.overrides import OFF, ON, Assignment
from launcher.config.similar import did_you_mean, nearest
from launcher.config.targets import KEY as TARGET
from launcher.config.tasks import metrics_of_tasks
from launcher.config.validate import ON_OFF
from launcher.config.yaml_file import package
from launcher.errors import Problem, Problems, UserError

_OFF = (OFF, False, None)
_SWITCHES = (ON, True, *_OFF)


class Switches:
    """The active algorithms, or callbacks or metrics, after applying config files in order, and then words.

    The defaults list of a file chooses options, and its values turn one on, or off if null. `active` maps each to the
    option of its values, which may have no file but a `_target_`.
    """

    def __init__(self, group: str, layers: Sequence[Layer]):
        self.active: dict[str, str] = {}
        self.group, self._files = group, files(group)
        self._inline: set[str] = set()
        self._of_recipe: list[str] = []
        self._stated: set[str] = set()
        self._values: list[Assignment] = []
        for layer in reversed(layers):
            if isinstance(listed := layer.chosen.get(group), list):
                self._of_recipe = [str(option) for option in listed]
                self._choose(self._of_recipe)
            for name, value in mapping(layer.values, group).items():
                self._stated.add(str(name))
                self._inline |= {str(name)} if isinstance(value, Mapping) and TARGET in value else set()
                self._turn(str(name), on=value is not None)

    def apply(self, assignments: Sequence[Assignment], problems: Problems) -> None:
        """Apply assignments in order; add a problem for each unknown one or invalid value."""
        own = [one for one in assignments if one.key.partition(".")[0] == self.group]
        for _, name, *rest in (one.key.split(".") for one in own if "." in one.key):
            self._inline |= {name} if rest == [TARGET] else set()
        for assignment in own:
            with problems.collected():
                self._follow(assignment)

    def values(self) -> list[Assignment]:
        """Return the assignments of values of active ones."""
        return [one for one in self._values if self._algorithm(one.key.split(".")[1]) in self.active]

    def options(self) -> list[str] | None:
        """Return the options that have files; None if they are among those of the recipe, whose list remains."""
        options = [option for option in self.active.values() if option in self._files]
        return None if {*options} <= {*self._of_recipe} else options

    def off(self) -> list[str]:
        """Return those that a file has, and that are off."""
        stated = self._stated | {self._algorithm(option) for option in self._of_recipe}
        return sorted(stated - self.active.keys())

    def _follow(self, one: Assignment) -> None:
        """Apply a list of options, a switch of one, or one of its values."""
        _, *names = one.key.split(".")
        if not names:
            options = _listed(one)
            self._check(options, one.value)
            self._choose(options)
            return
        name, *keys = names
        self._check([name], one.value)
        if keys or isinstance(one.value, Mapping):
            self._values.append(one)
        elif one.value not in _SWITCHES:
            like = nearest(str(one.value), ON_OFF)
            hint = f"did you mean {like}?" if like else line_instead(name, one.value)
            message = f"must be on, off, or a mapping of values{f'; {hint}' if hint else ''}"
            raise UserError(Problem(message, one.key, one.value, COMMAND_LINE))
        self._turn(name, on=bool(keys) or one.value not in _OFF)

    def _check(self, options: Sequence[str], value: Any) -> None:
        """Raise a UserError with each option that does not exist."""
        what, known = self.group.removesuffix("s"), {*self._files, *self._inline}
        if unknown := [option for option in options if option not in known]:
            meant = {one: synonyms("keys").get(one, one).removeprefix(f"{self.group}.") for one in unknown}
            instead = {one: line_instead(one, value) or self._instead(word, known) for one, word in meant.items()}
            texts = {one: f"no such {what}; {line}" for one, line in instead.items()}
            raise UserError(*(Problem(text, f"{self.group}.{one}", value, COMMAND_LINE) for one, text in texts.items()))

    def _instead(self, word: str, known: Collection[str]) -> str:
        """Return what to type for a word that is no option."""
        if self.group == "metrics" and word in metrics_of_tasks():
            _, tasks = metrics_of_tasks()[word]
            return f"task={tasks[0]} has it without; set metric={word} to choose the best checkpoint by it"
        return did_you_mean(word, known) if known else f"set {self.group}.{word}.{TARGET} to a class or function"

    def _choose(self, options: Sequence[str]) -> None:
        """Turn on exactly these options."""
        self.active = {self._algorithm(option): option for option in options}

    def _turn(self, option: str, *, on: bool) -> None:
        """Turn one off, or on with the values of the option, which may be a variant."""
        algorithm = self._algorithm(option)
        if not on:
            self.active.pop(algorithm, None)
        elif algorithm != option or algorithm not in self.active:
            self.active[algorithm] = option

    def _algorithm(self, option: str) -> str:
        """Return the algorithm of an option: the package of its `# @package` line, or its file name."""
        path = self._files.get(option)
        at = package(path) if path is not None else None
        return (at or option).removeprefix(f"{self.group}.")


def _listed(one: Assignment) -> list[str]:
    """Return the options of a group that are typed as a list, as one name, or as off."""
    value = one.value
    options = [] if value in (*_OFF, {}) else [value] if isinstance(value, str) else value
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        message = "must be a list such as [ema,blurpool]; set values by algorithms.sam.rho=0.1"
        raise UserError(Problem(message, one.key, value, COMMAND_LINE))
    return options
