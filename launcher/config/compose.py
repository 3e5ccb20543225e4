"""The command line to one typed run config: defaults < recipe < command line, every mistake in one report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.config import recipes, references
from launcher.config.defaults import defaults, options
from launcher.config.keys import did_you_mean, nearest
from launcher.config.layers import COMMAND_LINE, DEFAULTS, Layers, leaves
from launcher.config.overrides import OFF, Assignment, Words, parse
from launcher.config.recipes import Recipe
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.validate import ON_OFF, validate
from launcher.errors import Problem, Problems

ON = "on"
_DATA_FOLDER = "TRAIN_DATA"


@dataclass
class Composed:
    """A valid run config, the layer each dotted value came from, and lines the user should read."""

    config: RunConfig
    origins: dict[str, str]
    notes: list[str] = field(default_factory=list)


def compose(words: Sequence[str]) -> Composed:
    """Compose the run config of a command line's `key=value` words.

    Raises:
        UserError: with every mistake found, each naming key, value, origin and the nearest valid name.
    """
    problems, notes = Problems(), list[str]()
    recipe: Recipe | None = None
    given = parse(words, problems)
    with problems.collected():
        recipe = recipes.load(str(name)) if (name := given.last("recipe")) is not None else None
    layers = _lay(given, recipe, problems, notes)
    _data_folder(layers)
    with problems.collected():
        config = validate(layers)
    problems.settle()
    if recipe is not None and (hint := recipes.band_hint(config.epochs, recipe)):
        notes.append(hint)
    return Composed(config, layers.origins, notes)


def _data_folder(layers: Layers) -> None:
    """The folder that the environment names, as in the container image, where no word does."""
    folder = os.environ.get(_DATA_FOLDER)
    if folder and layers.get("dataset.kind") == "folder" and layers.get("dataset.path") is None:
        layers.set("dataset.path", folder, f"environment {_DATA_FOLDER}")


def _lay(given: Words, recipe: Recipe | None, problems: Problems, notes: list[str]) -> Layers:
    """All layers over one another; notes are on recipe values that a chosen option replaced."""
    layers = Layers()
    recipe_origin = f"recipe {recipe.name}" if recipe else ""
    recipe_values: dict[str, Any] = _recipe_values(recipe, given) if recipe else {}

    chosen = _choices(given, recipe_values, recipe_origin, problems)
    switched = _drop_replaced(chosen, recipe_values)
    notes += [f"{group}={chosen[group]} replaces the recipe's {values}" for group, values in switched.items()]

    recipe_algorithms = _active(recipe_values.pop("algorithms", {}), recipe_origin, problems)
    active, changes = command_line_algorithms(given, recipe_algorithms, problems)

    layers.merge(defaults(chosen, active), DEFAULTS)
    layers.merge(recipe_values, recipe_origin)
    kept = {name: values for name, values in recipe_algorithms.items() if name in active and values}
    layers.merge(kept, recipe_origin, "algorithms.")
    if recipe is not None:
        layers.origins.update({k: recipe.source(k) for k, at in layers.origins.items() if at == recipe_origin})
        layers.set("recipe", recipe.name, COMMAND_LINE)
    if (given.last("fidelity") or layers.get("fidelity")) == "published":
        notes += _published(layers, recipe, active, set(chosen) - set(recipe_values))

    for name, values in changes.items():
        merge(layers, values, problems, f"algorithms.{name}.")
    for assignment in given:
        if not assignment.key.startswith("algorithms") and assignment.key != "recipe":
            _assign(layers, assignment, problems)
    references.resolve(layers, problems)
    return layers


def _recipe_values(recipe: Recipe, given: Words) -> dict[str, Any]:
    """The recipe's values at the epochs that will run: some recipes change with the length."""
    asked = given.last("epochs")
    return recipes.values_for(recipe, asked if type(asked) is int else int(recipe.values.get("epochs", 1)))


def _choices(given: Words, recipe_values: Mapping[str, Any], recipe_origin: str, problems: Problems) -> dict[str, str]:
    """The option of each group that recipe or command line chooses; a bare string or a mapping's `name` chooses."""
    chosen: dict[str, str] = {}
    asked = [(a.key.removesuffix(".name"), a.value, COMMAND_LINE) for a in given]
    for group, value, origin in [*((g, recipe_values.get(g), recipe_origin) for g in GROUPS), *asked]:
        name = value.get("name") if isinstance(value, Mapping) else value
        if group not in GROUPS or name is None:
            continue
        if name in (known := options(group)):
            chosen[group] = name
        else:
            problems.append(Problem(f"no such {group}; {did_you_mean(str(name), known)}", group, name, origin))
    return chosen


def _drop_replaced(chosen: Mapping[str, str], recipe_values: dict[str, Any]) -> dict[str, str]:
    """Remove the recipe's values of groups whose option the command line changed; returns what was removed."""
    dropped = {}
    for group, name in chosen.items():
        value = recipe_values.get(group)
        wanted = value.get("name") if isinstance(value, Mapping) else value
        if wanted is None or wanted == name:
            if isinstance(value, str):
                recipe_values[group] = {"name": value}
            continue
        del recipe_values[group]
        if isinstance(value, Mapping):
            dropped[group] = ", ".join(f"{group}.{key}={leaf}" for key, leaf in leaves(value))
    return dropped


def _active(algorithms: Any, origin: str, problems: Problems) -> dict[str, dict[str, Any]]:
    """Name to given values of the algorithms that are on in a mapping or a list of names."""
    if isinstance(algorithms, list):
        algorithms = dict.fromkeys(map(str, algorithms), ON)
    if algorithms in (OFF, None, False):
        algorithms = {}
    if not isinstance(algorithms, Mapping):
        message = "must be a list of names such as [ema,blurpool], or a mapping of names to values, on or off"
        problems.append(Problem(message, "algorithms", algorithms, origin))
        return {}
    active: dict[str, dict[str, Any]] = {}
    for name, value in algorithms.items():
        _switch(active, str(name), value, origin, problems)
    return active


def _switch(active: dict[str, dict[str, Any]], name: str, value: Any, origin: str, problems: Problems) -> None:
    """Turn one algorithm on, off, or on with values."""
    if name not in (known := options("algorithms")):
        message = f"no such algorithm; {did_you_mean(name, known)}"
        problems.append(Problem(message, f"algorithms.{name}", value, origin))
    elif value in (ON, True):
        active.setdefault(name, {})
    elif value in (OFF, False, None):
        active.pop(name, None)
    elif isinstance(value, Mapping):
        active.setdefault(name, {}).update(value)
    else:
        hint = f"; did you mean {found}?" if (found := nearest(str(value), ON_OFF)) else ""
        problems.append(Problem(f"must be on, off, or a mapping of values{hint}", f"algorithms.{name}", value, origin))


def command_line_algorithms(
    given: Words, from_recipe: Mapping[str, Any], problems: Problems
) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """Names active in the end, and the values that the command line gives them."""
    active: dict[str, dict[str, Any]] = {name: {} for name in from_recipe}
    for assignment in given:
        head, _, rest = assignment.key.partition(".")
        if head != "algorithms":
            continue
        name, _, value_key = rest.partition(".")
        if not name:
            active = _active(assignment.value, COMMAND_LINE, problems)
        elif value_key:
            _switch(active, name, {value_key: assignment.value}, COMMAND_LINE, problems)
        else:
            _switch(active, name, assignment.value, COMMAND_LINE, problems)
    return set(active), active


def _published(layers: Layers, recipe: Recipe | None, active: set[str], replaced: set[str]) -> list[str]:
    """Lay the recipe's published variants over its own values: of methods that are on and groups not replaced."""
    if recipe is None or not recipe.published:
        whose = f"recipe={recipe.name} has no" if recipe else "without a recipe there is no"
        return [f"fidelity=published changes nothing: {whose} published variant"]
    for name, values in recipe.published.items():
        if name == "algorithms":
            layers.merge({k: v for k, v in values.items() if k in active}, "fidelity=published", "algorithms.")
        elif name not in replaced:
            layers.merge({name: values}, "fidelity=published")
    return []


def _assign(layers: Layers, assignment: Assignment, problems: Problems) -> None:
    group, _, rest = assignment.key.partition(".")
    if group in GROUPS and rest in ("", "name") and not isinstance(assignment.value, Mapping):
        if layers.get(group) is not None:
            layers.origins[f"{group}.name"] = COMMAND_LINE
    else:
        merge(layers, {assignment.key: assignment.value}, problems)


def merge(layers: Layers, values: Mapping[str, Any], problems: Problems, prefix: str = "") -> None:
    """Lay the command line's values over the others; a problem for each that has no place."""
    for name, value in values.items():
        try:
            layers.merge({name: value}, COMMAND_LINE, prefix)
        except KeyError as error:
            problems.append(Problem(f"{error.args[0]} has no keys below it", prefix + name, value, COMMAND_LINE))
