"""The command line to one typed run config: Hydra composes defaults < recipe < command line, mistakes in one report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config import recipes
from launcher.config.fields import expanded
from launcher.config.groups import options
from launcher.config.keys import did_you_mean
from launcher.config.layers import COMMAND_LINE, DEFAULTS, get, leaves, put, resolve, without
from launcher.config.overrides import SEARCH_PATH, Assignment, Switches, parse, quoted
from launcher.config.recipes import Recipe
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.validate import validate
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, Problems

_DATA_FOLDER = "TRAIN_DATA"
_LIST = "algorithms"
_IMAGENET_CLASSES = 1000
# What composed configs hold beside a run's values.
_NOT_OF_A_RUN = ("about", "hydra")
_ABSENT = object()


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

    composition = Composition(words)
    origin, problems, notes = composition.origin, composition.problems, composition.notes
    with problems.collected():
        values = composed(composition.command)
        folder = os.environ.get(_DATA_FOLDER)
        if folder and get(values, "dataset.kind") == "folder" and get(values, "dataset.path") is None:
            put(values, "dataset.path", folder)
            composition.layers.insert(0, _Layer(f"environment {_DATA_FOLDER}", {"dataset": {"path": folder}}))
        config = validate(resolve(values, origin, problems), origin)
    problems.settle()
    if composition.recipe is not None and (hint := recipes.band_hint(config.epochs, composition.recipe)):
        notes.append(hint)
    return Composed(config, {key: origin(key) for key, _ in leaves(values)}, notes)


@dataclass(frozen=True)
class _Layer:
    """What is laid over the layers below it: where it comes from, the values that it sets, the options that it chooses.

    `path` is its file, and `options` are those of all groups that the file's values are for.
    """

    origin: str
    values: dict[str, Any]
    chosen: Mapping[str, Any] = field(default_factory=dict)
    path: Path = Path()
    options: Mapping[str, Any] = field(default_factory=dict)

    def sets(self, key: str) -> bool:
        """Whether it sets a dotted key, or one within it."""
        group, _, rest = key.partition(".")
        return (rest == "name" and group in self.chosen) or get(self.values, key, _ABSENT) is not _ABSENT

    def kept(self, options: Mapping[str, Any]) -> _Layer:
        """The layer without values of options that others replace, and without nulls of algorithms, which words say."""
        replaced = {group for group in GROUPS if self.options.get(group) != options.get(group)}
        stated = self.values.get(_LIST)
        nulls = {name for name, value in stated.items() if value is None} if isinstance(stated, Mapping) else set()
        return replace(self, values=without(self.values, replaced | {f"{_LIST}.{name}" for name in nulls}))


class Composition:
    """The words of a command line as what Hydra composes: its `command`, and the `layers` of values, nearest first.

    `problems` is what is wrong with the words, `notes` what the user should read.
    """

    def __init__(self, words: Sequence[str]):
        self.problems = Problems()
        self.notes: list[str] = []
        self.recipe: Recipe | None = None
        given = parse(words, self.problems)
        name = next((one.value for one in reversed(given) if one.key == "recipe"), None)
        with paths.searching(self._folders(given)):
            with self.problems.collected():
                self.recipe = None if name is None else recipes.load(str(name))
            self._compose(given, self.recipe or recipes.train())

    def origin(self, key: str) -> str:
        """What set a dotted key, or for a mapping the nearest that set something in it."""
        return next((layer.origin for layer in self.layers if layer.sets(key)), DEFAULTS)

    def _folders(self, given: Sequence[Assignment]) -> list[Path]:
        """The folders of `--config-dir`."""
        values = [one.value for one in given if one.key == SEARCH_PATH]
        names = [str(name) for value in values for name in (value if isinstance(value, list) else [value])]
        folders = {name: Path(name.removeprefix("file://")) for name in names}
        missing = [name for name, folder in folders.items() if not folder.is_dir()]
        self.problems += [Problem("no such folder; create it", SEARCH_PATH, name, COMMAND_LINE) for name in missing]
        return list(folders.values())

    def _compose(self, given: Sequence[Assignment], top: Recipe) -> None:
        from launcher.config.source import Command

        chosen, setting = sort_words(given, self.problems)
        path = next((one.value for one in reversed(setting) if one.key == "dataset.path"), os.environ.get(_DATA_FOLDER))
        option = dataset_at(str(path), str(top.options.get("dataset"))) if path else None
        if "dataset" not in chosen and option != top.options.get("dataset") and option is not None:
            chosen["dataset"] = option
            self.notes.append(f"{path} is read as dataset={option}; type dataset={top.options['dataset']} to keep that")
        published, lengths, chain = self._layers(top, {one.key: one.value for one in setting})
        below = [*reversed(chain), *reversed(lengths)]
        switches = Switches((layer.chosen.get(_LIST), layer.values.get(_LIST)) for layer in below)
        switches.apply(given, self.problems)
        for group, option in chosen.items():
            values = [leaf for layer in chain if layer.options.get(group) != option for leaf in leaves(layer.values)]
            if replaced := [f"{key}={value}" for key, value in values if key.startswith(f"{group}.")]:
                self.notes.append(f"{group}={option} replaces the recipe's {', '.join(replaced)}")
        typed: dict[str, Any] = {}
        for one in (*setting, *switches.values()):
            put(typed, one.key, one.value)
        kept = [layer.kept({**top.options, **chosen}) for layer in (*published, *lengths, *chain)]
        self.layers = [_Layer(COMMAND_LINE, typed, chosen), *kept]
        words = [f"{group}={quoted(option)}" for group, option in chosen.items()]
        words += [f"+lengths/{layer.path.parent.name}={quoted(layer.path.stem)}" for layer in reversed(lengths)]
        if published:
            words.append(f"+published=[{','.join(quoted(layer.path.stem) for layer in reversed(published))}]")
        words += switches.words() + [f"++recipe={quoted(top.name)}"] * (self.recipe is not None)
        words += [one.word for one in setting if one.key != "recipe"]
        files = {layer.path: layer.values for layer in kept}
        self.command = Command(top.name, words, paths.search_path(), top.path, files)

    def _layers(self, top: Recipe, typed: Mapping[str, Any]) -> tuple[list[_Layer], list[_Layer], list[_Layer]]:
        """Published variants, values for the length, and the recipes themselves, each with the nearest first."""
        epochs = typed.get("epochs")
        epochs = epochs if type(epochs) is int else top.get("epochs")
        as_published = (typed.get("fidelity") or top.get("fidelity")) == "published"
        published, lengths, chain = [], [], []
        for recipe in top.chain():
            base = f", base of {top.name}" if recipe is not top else ""
            origin = f"recipe {recipe.name}{base}" if recipe.base else DEFAULTS
            chain.append(_Layer(origin, recipe.values, recipe.chosen, recipe.path, recipe.options))
            if file := recipe.changes_at(epochs):
                lengths.append(_Layer(origin, read_mapping(file), {}, file, recipe.options))
            if as_published and (file := recipe.published):
                published.append(_Layer("fidelity=published", read_mapping(file), {}, file, recipe.options))
        if as_published and not published:
            whose = f"recipe={top.name} has no" if self.recipe else "without a recipe there is no"
            self.notes.append(f"fidelity=published has no effect: {whose} published variant")
        return published, lengths, chain


def dataset_at(path: str, usual: str) -> str:
    """The option of `dataset` for a path: ImageNet's or that of any class folders, in the place of `usual`.

    A path that is no folder here leaves ImageNet as it is; options of the user's own always stay.
    """
    if usual not in ("shapes", "imagenet"):
        return usual
    with suppress(ValueError, OSError):
        folder = Path(expanded(path))
        if any(folder.glob("ILSVRC2012_img_*.tar")) or len(list(folder.glob("train/n????????"))) == _IMAGENET_CLASSES:
            return "imagenet"
        if folder.is_dir():
            return "image_folder"
    return "imagenet" if usual == "imagenet" else "image_folder"


def sort_words(given: Sequence[Assignment], problems: Problems) -> tuple[dict[str, str], list[Assignment]]:
    """The options that words choose by group, and the words that set values; a problem for each that may not."""
    chosen: dict[str, str] = {}
    setting = []
    for one in given:
        key, value, problem = one.key, one.value, None
        head, _, rest = key.partition(".")
        if head in _NOT_OF_A_RUN and key != SEARCH_PATH:
            problem = "no such key"
        elif head in GROUPS and rest == "name":
            problem = f"cannot be set; type {head}={value} to choose an option"
        elif key in GROUPS and not isinstance(value, Mapping):
            known = options(key)
            problem = None if value in known else f"no such {key}; {did_you_mean(str(value), known)}"
            chosen |= {key: value} if problem is None else {}
        elif head != _LIST and key != SEARCH_PATH:
            setting.append(one)
        if problem is not None:
            problems.append(Problem(problem, key, value, COMMAND_LINE))
    return chosen, setting
