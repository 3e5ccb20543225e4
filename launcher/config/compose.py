"""The command line to one typed run config: Hydra composes defaults < recipe < command line, mistakes in one report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config import recipes
from launcher.config.groups import options
from launcher.config.keys import did_you_mean
from launcher.config.layers import COMMAND_LINE, DEFAULTS, get, leaves, put, without
from launcher.config.overrides import SEARCH_PATH, Assignment, last, parse, quoted
from launcher.config.recipes import Recipe
from launcher.config.references import resolve
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.switches import Switches
from launcher.config.validate import validate
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, Problems

_DATA_FOLDER = "TRAIN_DATA"
_LIST = "algorithms"
# What composed configs hold beside a run's values.
_NOT_OF_A_RUN = ("about", "hydra")


@dataclass
class Composed:
    """A valid run config, where each dotted value came from, and lines the user should read."""

    config: RunConfig
    origins: dict[str, str]
    notes: list[str] = field(default_factory=list)


def compose(words: Sequence[str]) -> Composed:
    """Compose the run config of a command line's `key=value` words.

    Raises:
        UserError: with every mistake found, each naming key, value, origin and the nearest valid name.
    """
    from launcher.config.source import composed, plain

    problems = Problems()
    composition = Composition(words, problems)
    with problems.collected():
        values = plain(composed(composition.command))
        _data_folder(values, composition)
        config = validate(resolve(values, composition.origin, problems), composition.origin)
    problems.settle()
    if composition.recipe is not None and (hint := recipes.band_hint(config.epochs, composition.recipe)):
        composition.notes.append(hint)
    return Composed(config, {key: composition.origin(key) for key, _ in leaves(values)}, composition.notes)


def composition(words: Sequence[str]) -> Composition:
    """What Hydra composes for a command line.

    Raises:
        UserError: with every word that cannot be read, or names what there is not.
    """
    problems = Problems()
    found = Composition(words, problems)
    problems.settle()
    return found


def _data_folder(values: dict[str, Any], composition: Composition) -> None:
    """The folder that the environment names, as in the container image, where no word does."""
    folder = os.environ.get(_DATA_FOLDER)
    if folder and get(values, "dataset.kind") == "folder" and get(values, "dataset.path") is None:
        put(values, "dataset.path", folder)
        composition.stated.insert(0, (f"environment {_DATA_FOLDER}", {"dataset.path"}))


class Composition:
    """The words of a command line as what Hydra composes, and what each file and the command line set in it.

    `stated` are, nearest first, the names of what sets values, with the dotted keys that it sets.
    """

    def __init__(self, words: Sequence[str], problems: Problems):
        self.notes: list[str] = []
        self.recipe: Recipe | None = None
        self._given = parse(words, problems)
        self._config_dirs = _config_dirs(self._given, problems)
        self._folders = paths.search_path(self._config_dirs)
        with problems.collected():
            if (name := last(self._given, "recipe")) is not None:
                self.recipe = recipes.load(str(name), self._config_dirs)
        self._top = self.recipe or recipes.train(self._config_dirs)
        self._chosen = _choices(self._given, self._folders, problems)
        self._lengths, self._published = self._variants()
        self._dropped = self._replaced()
        parts = [(recipe.chosen.get(_LIST), recipe.values.get(_LIST)) for recipe in reversed([*self._top.chain()])]
        over = [(None, read_mapping(path).get(_LIST)) for path in self._lengths]
        switches = Switches([*parts, *over], self._folders)
        switches.apply(self._given, problems)
        on = {f"{_LIST}.{name}" for name in switches.active}
        for recipe in self._top.chain():
            null = {key for key, value in leaves({_LIST: recipe.values.get(_LIST)}) if value is None}
            self._dropped[recipe.path] |= null & on
        self.command = self._command(switches)
        self.stated = list(self._statements())

    def origin(self, key: str) -> str:
        """What set a dotted key, or for a mapping the nearest that set something in it."""
        upwards = [key.rsplit(".", up)[0] for up in range(key.count(".") + 1)]
        for name, keys in self.stated:
            if any(parent in keys for parent in upwards):
                return name
        for name, keys in self.stated:
            if any(stated.startswith(f"{key}.") for stated in keys):
                return name
        return DEFAULTS

    def _variants(self) -> tuple[dict[Path, Recipe], dict[Path, Recipe]]:
        """Files of the chain's recipes that are laid over them: for the length, and for what was published."""
        asked = last(self._given, "epochs")
        epochs = asked if type(asked) is int else self._top.get("epochs")
        lengths, published = {}, {}
        for recipe in reversed([*self._top.chain()]):
            if recipe.lengths and (length := recipe.length(epochs)) != recipe.length(recipe.get("epochs")):
                lengths[recipe.lengths[length]] = recipe
            if recipe.published is not None:
                published[recipe.published] = recipe
        if (last(self._given, "fidelity") or self._top.get("fidelity")) != "published":
            return lengths, {}
        if not published:
            whose = f"recipe={self.recipe.name} has no" if self.recipe else "without a recipe there is no"
            self.notes.append(f"fidelity=published changes nothing: {whose} published variant")
        return lengths, published

    def _replaced(self) -> dict[Path, frozenset[str]]:
        """By file, the groups in which another option than the one that the file's values are for is chosen."""
        now: dict[str, Any] = {}
        options_at: dict[Path, dict[str, Any]] = {}
        for recipe in reversed([*self._top.chain()]):
            now = {**now, **recipe.chosen}
            options_at[recipe.path] = now
        final = {**now, **self._chosen}
        for path, recipe in {**self._lengths, **self._published}.items():
            options_at[path] = options_at[recipe.path]
        dropped = {
            path: frozenset(group for group in GROUPS if here.get(group) != final.get(group))
            for path, here in options_at.items()
        }
        for group in self._chosen:
            values = [
                f"{group}.{key}={value}"
                for recipe in self._top.chain()
                if group in dropped[recipe.path] and isinstance(recipe.values.get(group), Mapping)
                for key, value in leaves(recipe.values[group])
            ]
            if values:
                self.notes.append(f"{group}={self._chosen[group]} replaces the recipe's {', '.join(values)}")
        return dropped

    def _command(self, switches: Switches) -> Any:
        from launcher.config.source import Command

        words = [f"{group}={quoted(option)}" for group, option in self._chosen.items()]
        words += switches.choice()
        words += [f"+lengths/{recipe.name}={quoted(path.stem)}" for path, recipe in self._lengths.items()]
        if self._published:
            words.append(f"+published=[{','.join(quoted(path.stem) for path in self._published)}]")
        words += [*switches.off(), *(given.word for given in switches.values())]
        if self.recipe is not None:
            words.append(f"++recipe={quoted(self.recipe.name)}")
        words += [given.word for given in self._given if _is_value(given)]
        return Command(self._top.name, words, self._folders, self._top.path, self._dropped)

    def _statements(self) -> Iterable[tuple[str, set[str]]]:
        words = {f"{given.key}.name" if _chooses(given) else given.key for given in self._given}
        yield COMMAND_LINE, {key for key in words if key.count(".") != 1 or not key.startswith("algorithms.")}
        for path in self._published:
            yield "fidelity=published", self._keys(path, read_mapping(path))
        for path, recipe in self._lengths.items():
            yield self._named(recipe), self._keys(path, read_mapping(path))
        for recipe in self._top.chain():
            if recipe.base is not None:
                names = {f"{group}.name" for group in recipe.chosen}
                yield self._named(recipe), names | self._keys(recipe.path, recipe.values)

    def _keys(self, path: Path, values: Mapping[str, Any]) -> set[str]:
        return {key for key, _ in leaves(without(values, self._dropped[path]))}

    def _named(self, recipe: Recipe) -> str:
        return f"recipe {recipe.name}" + (f", base of {self._top.name}" if recipe is not self._top else "")


def _is_value(given: Assignment) -> bool:
    """Whether a word sets a value; others choose what is composed, or have been refused."""
    head, _, rest = given.key.partition(".")
    chooses = given.key == "recipe" or head in (_LIST, *_NOT_OF_A_RUN) or (head in GROUPS and rest == "name")
    return not chooses and not _chooses(given)


def _chooses(given: Assignment) -> bool:
    return given.key in GROUPS and not isinstance(given.value, Mapping)


def _config_dirs(given: Sequence[Assignment], problems: Problems) -> list[Path]:
    """The folders of `--config-dir`."""
    found = []
    for assignment in given:
        if assignment.key == SEARCH_PATH:
            value = assignment.value
            for name in value if isinstance(value, list) else [value]:
                found.append(Path(str(name).removeprefix("file://")))
                if not found[-1].is_dir():
                    problems.append(Problem("no such folder", SEARCH_PATH, name, COMMAND_LINE))
        elif assignment.key.partition(".")[0] in _NOT_OF_A_RUN:
            problems.append(Problem("no such key", assignment.key, assignment.value, COMMAND_LINE))
    return found


def _choices(given: Sequence[Assignment], folders: Sequence[Path], problems: Problems) -> dict[str, str]:
    """The option of each group that the command line chooses."""
    chosen: dict[str, str] = {}
    for assignment in given:
        key, value = assignment.key, assignment.value
        if key.removesuffix(".name") in GROUPS and key.endswith(".name"):
            group = key.removesuffix(".name")
            problems.append(Problem(f"is the option's own; type {group}={value}", key, value, COMMAND_LINE))
        elif _chooses(assignment):
            if value in (known := options(key, folders)):
                chosen[key] = value
            else:
                problems.append(Problem(f"no such {key}; {did_you_mean(str(value), known)}", key, value, COMMAND_LINE))
    return chosen
