"""Recipe files: found by name, read, their headers typed, their ablations merged onto what they change."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as typed

from launcher import paths
from launcher.config.algorithms import STRICT
from launcher.config.keys import nearest
from launcher.errors import Problem, UserError

# The recipes that share out the lengths among them: a length outside one's band belongs to another.
BANDED = ("mild", "medium", "hot")


@typed(frozen=True, config=STRICT)
class Published:
    """One published result: epochs, accuracies in percent, training minutes on the hardware, and where it stands."""

    epochs: int
    top1: float
    minutes: float | None
    hardware: str
    source: str
    top5: float | None = None


@typed(frozen=True, config=STRICT)
class About:
    """A recipe's header: what it is, the lengths in epochs that it is meant for (null: no end), published results."""

    summary: str
    epochs: list[int | None]
    published: list[Published]


@dataclass(frozen=True)
class Recipe:
    """A recipe file: `values` are run-config values, `by_epochs` changes to them at certain lengths."""

    name: str
    path: Path
    about: About
    values: dict[str, Any]
    by_epochs: dict[int, dict[str, Any]]


def find(name: str) -> Path:
    """The file of a recipe or ablation: `recipes/` in the working directory first, then the packaged one.

    Raises:
        UserError: there is none; names the nearest.
    """
    known = _files()
    if name in known:
        return known[name]
    hint = f"did you mean {found}? " if (found := nearest(name, known)) else ""
    listed = ", ".join(sorted(n for n in known if "/" not in n))
    raise UserError(Problem(f"no such recipe; {hint}one of: {listed}", "recipe", name, "command line"))


def load(name: str) -> Recipe:
    """Read a recipe by name; an ablation's `base` is merged under it.

    Raises:
        UserError: no such recipe, or its file is not what a recipe is.
    """
    return _load(name, ())


def listing() -> list[Recipe]:
    """All recipes, the banded ones first."""
    names = [name for name in _files() if "/" not in name]
    return [load(name) for name in sorted(names, key=lambda n: (BANDED.index(n) if n in BANDED else len(BANDED), n))]


def ablations() -> list[Recipe]:
    """All ablations: recipes that change one thing of another."""
    return [load(name) for name in sorted(_files()) if name.startswith("ablations/")]


def values_for(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """The recipe's values for a run of so many epochs: those of the nearest length that it lists, if it lists any."""
    if not recipe.by_epochs:
        return copy.deepcopy(recipe.values)
    length = min(recipe.by_epochs, key=lambda known: (abs(known - epochs), known))
    return _merged(recipe.values, recipe.by_epochs[length])


def band_hint(epochs: int, recipe: Recipe) -> str | None:
    """A line naming the recipe that is meant for a length, if it is not this one."""
    if _in_band(epochs, recipe):
        return None
    low, high = recipe.about.epochs
    band = f"{low} to {high}" if high is not None else f"{low} or more"
    if recipe.name in BANDED:
        for name in BANDED:
            if name in _files() and _in_band(epochs, load(name)):
                return f"{recipe.name} is meant for {band} epochs; recipe={name} is meant for {epochs}"
    return f"{recipe.name} is meant for {band} epochs, not {epochs}"


def _in_band(epochs: int, recipe: Recipe) -> bool:
    low, high = recipe.about.epochs
    return (low or 1) <= epochs and (high is None or epochs <= high)


def _files() -> dict[str, Path]:
    """Name to file; an ablation goes by `ablations/NAME`, and by NAME alone where no recipe has it."""
    found: dict[str, Path] = {}
    for folder in reversed(paths.recipe_folders()):
        for path in sorted(folder.glob("ablations/*.yaml")):
            found[f"ablations/{path.stem}"] = path
        for path in sorted(folder.glob("*.yaml")):
            found[path.stem] = path
    return found


def _load(name: str, trail: tuple[str, ...]) -> Recipe:
    path = find(name)
    content = dict(_mapping(path))
    try:
        about = TypeAdapter(About).validate_json(json.dumps(content.pop("about", None), default=str))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("about", *first["loc"])))
        raise UserError(f"{path}: {where}: {first['msg']}") from None
    values, by_epochs = content, content.pop("by_epochs", {})
    if (base := values.pop("base", None)) is not None:
        if base in trail:
            raise UserError(f"{path}: base={base} leads back to itself")
        values = _merged(_load(str(base), (*trail, name)).values, values)
    return Recipe(name, path, about, values, by_epochs)


def _mapping(path: Path) -> dict[str, Any]:
    content = _parsed(path, path.stat().st_mtime_ns)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{path}: a recipe is a mapping of keys to values")
    return copy.deepcopy(content)


@cache
def _parsed(path: Path, _modified: int) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        line = f":{place.line + 1}" if place else ""
        reason = getattr(error, "problem", None) or str(error)
        raise UserError(f"{path}{line}: {reason}") from None


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes laid over a base: mappings merge, unless they choose another option by `name`."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        old = merged.get(key)
        renamed = isinstance(old, dict) and isinstance(value, dict) and value.get("name") not in (None, old.get("name"))
        if isinstance(old, dict) and isinstance(value, dict) and not renamed:
            merged[key] = _merged(old, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged
