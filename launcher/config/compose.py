"""The command line to one typed run config: Hydra composes defaults < recipe < command line, mistakes in one report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config import recipes
from launcher.config.groups import options
from launcher.config.keys import did_you_mean
from launcher.config.layers import COMMAND_LINE, DEFAULTS, get, leaves, put, resolve, without
from launcher.config.overrides import SEARCH_PATH, Assignment, Switches, last, parse, quoted
from launcher.config.recipes import Recipe
from launcher.config.schema import GROUPS, RunConfig
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
    from launcher.config.source import composed

    problems = Problems()
    composition = Composition(words, problems)
    with problems.collected():
        values = composed(composition.command)
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


@dataclass(frozen=True)
class _Layer:
    """A file that is laid over those below it: what sets its values, and the options that these are for.

    `chosen` are the options that the file itself chooses.
    """

    origin: str
    path: Path
    values: dict[str, Any]
    options: dict[str, Any]
    chosen: dict[str, Any] = field(default_factory=dict)

    def dropped(self, options: dict[str, Any], on: set[str]) -> frozenset[str]:
        """Keys to drop: groups of which another option is chosen in the end, nulls of algorithms that are on again."""
        nulls = {key for key, value in leaves({_LIST: self.values.get(_LIST)}) if value is None}
        replaced = {group for group in GROUPS if self.options.get(group) != options.get(group)}
        return frozenset(replaced | (nulls & {f"{_LIST}.{name}" for name in on}))


class Composition:
    """The words of a command line as what Hydra composes, and what each file and the command line set in it.

    `stated` are, nearest first, the names of what sets values, with the dotted keys that it sets.
    """

    def __init__(self, words: Sequence[str], problems: Problems):
        self.notes: list[str] = []
        self.recipe: Recipe | None = None
        given = parse(words, problems)
        with paths.searching(_config_dirs(given, problems)):
            with problems.collected():
                if (name := last(given, "recipe")) is not None:
                    self.recipe = recipes.load(str(name))
            self._top = self.recipe or recipes.train()
            self._compose(given, problems)

    def _compose(self, given: Sequence[Assignment], problems: Problems) -> None:
        from launcher.config.source import Command

        chosen = _choices(given, problems)
        published, lengths, chain = self._layers(given)
        below = [*reversed(chain), *reversed(lengths)]
        switches = Switches((layer.chosen.get(_LIST), layer.values.get(_LIST)) for layer in below)
        switches.apply(given, problems)
        options, layers = {**self._top.options, **chosen}, [*published, *lengths, *chain]
        dropped = {layer.path: layer.dropped(options, switches.active) for layer in layers}
        for group, option in chosen.items():
            values = [leaf for layer in chain if group in dropped[layer.path] for leaf in leaves(layer.values)]
            if replaced := [f"{key}={value}" for key, value in values if key.startswith(f"{group}.")]:
                self.notes.append(f"{group}={option} replaces the recipe's {', '.join(replaced)}")
        self._state(given, layers, dropped)
        words = [f"{group}={quoted(option)}" for group, option in chosen.items()] + switches.choice()
        words += [f"+lengths/{layer.path.parent.name}={quoted(layer.path.stem)}" for layer in reversed(lengths)]
        if published:
            words.append(f"+published=[{','.join(quoted(layer.path.stem) for layer in reversed(published))}]")
        words += [*switches.off(), *(one.word for one in switches.values())]
        if self.recipe is not None:
            words.append(f"++recipe={quoted(self.recipe.name)}")
        words += [one.word for one in given if _is_value(one)]
        self.command = Command(self._top.name, words, paths.search_path(), self._top.path, dropped)

    def _state(
        self, given: Sequence[Assignment], layers: Sequence[_Layer], dropped: Mapping[Path, frozenset[str]]
    ) -> None:
        typed = {f"{one.key}.name" if _chooses(one) else one.key for one in given}
        self.stated = [(COMMAND_LINE, {key for key in typed if key.count(".") != 1 or not key.startswith(f"{_LIST}.")})]
        for layer in layers:
            keys = {key for key, _ in leaves(without(layer.values, dropped[layer.path]))}
            self.stated.append((layer.origin, keys | {f"{group}.name" for group in layer.chosen}))

    def _layers(self, given: Sequence[Assignment]) -> tuple[list[_Layer], list[_Layer], list[_Layer]]:
        """Published variants, values for the length, and the recipes themselves, each with the nearest first."""
        asked = last(given, "epochs")
        epochs = asked if type(asked) is int else self._top.get("epochs")
        as_published = (last(given, "fidelity") or self._top.get("fidelity")) == "published"
        published, lengths, chain = [], [], []
        for recipe in self._top.chain():
            base = f", base of {self._top.name}" if recipe is not self._top else ""
            origin = f"recipe {recipe.name}{base}" if recipe.base else DEFAULTS
            chain.append(_Layer(origin, recipe.path, recipe.values, recipe.options, recipe.chosen))
            if file := recipe.changes_at(epochs):
                lengths.append(_Layer(origin, file, read_mapping(file), recipe.options))
            if as_published and recipe.published:
                values = read_mapping(recipe.published)
                published.append(_Layer("fidelity=published", recipe.published, values, recipe.options))
        if as_published and not published:
            whose = f"recipe={self.recipe.name} has no" if self.recipe else "without a recipe there is no"
            self.notes.append(f"fidelity=published changes nothing: {whose} published variant")
        return published, lengths, chain

    def origin(self, key: str) -> str:
        """What set a dotted key, or for a mapping the nearest that set something in it."""
        upwards = {key.rsplit(".", up)[0] for up in range(key.count(".") + 1)}
        within = [name for name, keys in self.stated if any(stated.startswith(f"{key}.") for stated in keys)]
        return next((name for name, keys in self.stated if keys & upwards), [*within, DEFAULTS][0])


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


def _choices(given: Sequence[Assignment], problems: Problems) -> dict[str, str]:
    """The option of each group that the command line chooses."""
    chosen: dict[str, str] = {}
    for assignment in given:
        key, value = assignment.key, assignment.value
        if key.removesuffix(".name") in GROUPS and key.endswith(".name"):
            group = key.removesuffix(".name")
            problems.append(Problem(f"is the option's own; type {group}={value}", key, value, COMMAND_LINE))
        elif _chooses(assignment):
            if value in (known := options(key)):
                chosen[key] = value
            else:
                problems.append(Problem(f"no such {key}; {did_you_mean(str(value), known)}", key, value, COMMAND_LINE))
    return chosen
