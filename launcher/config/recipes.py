"""Recipe files: found by name, read, their headers typed, their ablations merged onto what they change."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as typed

from launcher import paths
from launcher.config.fields import STRICT, Count, Positive, expanded
from launcher.config.keys import nearest
from launcher.config.layers import COMMAND_LINE, leaves
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, Problems, UserError

# The recipes that share out the lengths among them: a length outside a recipe's band belongs to one of these.
BANDED = ("mild", "medium", "hot")

_ABLATIONS = "ablations"
_MOST_BASES = 10


@typed(frozen=True, config=STRICT)
class Published:
    """One published result: its source states no epochs where null.

    Accuracies in percent, `minutes` of training on `hardware`, evaluation and checkpoints left out.
    """

    epochs: Count | None
    top1: Positive
    minutes: Positive | None
    hardware: str
    source: str
    top5: Positive | None = None


@typed(frozen=True, config=STRICT)
class About:
    """A recipe's header: what it is, the first and last length in epochs it is meant for (null: no end), results."""

    summary: str
    epochs: Annotated[list[Count | None], Field(min_length=2, max_length=2)]
    published: list[Published]


@dataclass(frozen=True)
class Recipe:
    """A recipe file: `values` are run-config values, `by_epochs` changes to them at certain lengths.

    `published` are the values with which `fidelity=published` computes what the published code does otherwise;
    `own` the dotted keys that the file itself sets, not its `base`.
    """

    name: str
    path: Path
    about: About
    values: dict[str, Any]
    by_epochs: dict[int, dict[str, Any]]
    published: dict[str, Any]
    base: Recipe | None
    own: frozenset[str]

    def source(self, key: str) -> str:
        """Which recipe sets a dotted key: this one, or one that it is based on."""
        at = self
        while at.base is not None and not any(f"{key}.".startswith(f"{own}.") for own in at.own):
            at = at.base
        return f"recipe {at.name}" + (f", base of {self.name}" if at is not self else "")


def find(name: str) -> Path:
    """The file of a recipe, or of an ablation by `NAME` or `ablations/NAME`.

    A `recipes/` folder in the working directory comes first, then the packaged one.

    Raises:
        UserError: there is none; names the nearest, and the recipes that there are.
    """
    return _find(name, COMMAND_LINE)


def load(name: str) -> Recipe:
    """Read a recipe by name; a `base` is merged under it.

    Raises:
        UserError: no such recipe, or its file is not what a recipe is.
    """
    return _load(find(name), ())


def is_known(name: str) -> bool:
    """Whether a word is the name of a recipe or ablation, or a recipe's file."""
    return _path(name) is not None


def names() -> list[str]:
    """All recipes and ablations by file name: nothing is read."""
    return sorted({*_files(), *_files(_ABLATIONS)})


def listing() -> list[Recipe]:
    """All recipes, the banded ones first, without those of `unreadable`."""
    found = _readable(_files())[0]
    return sorted(found, key=lambda r: (BANDED.index(r.name) if r.name in BANDED else len(BANDED), r.name))


def ablations() -> list[Recipe]:
    """All ablations: recipes that change one thing of another; without those of `unreadable`."""
    return sorted(_readable(_files(_ABLATIONS))[0], key=lambda recipe: recipe.name)


def unreadable() -> list[Problem]:
    """What is wrong with the files that are no recipes or ablations."""
    return [*_readable(_files())[1], *_readable(_files(_ABLATIONS))[1]]


def values_for(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """The recipe's values for a run of so many epochs: those of the nearest length that it lists, if it lists any."""
    if not recipe.by_epochs:
        return copy.deepcopy(recipe.values)
    length = min(recipe.by_epochs, key=lambda known: (abs(known - epochs), known))
    return _merged(recipe.values, recipe.by_epochs[length])


def band_hint(epochs: int, recipe: Recipe) -> str | None:
    """A line naming which of mild, medium and hot is meant for a length that is outside the recipe's band."""
    if _in_band(epochs, recipe):
        return None
    low, high = recipe.about.epochs
    band = f"{low} or more" if high is None else f"{low}" if low == high else f"{low or 1} to {high}"
    meant = f"{recipe.name} is meant for {band} epochs"
    for other in _readable({name: find(name) for name in BANDED})[0]:
        if _in_band(epochs, other):
            return f"{meant}; recipe={other.name} is meant for {epochs}"
    return f"{meant}, not {epochs}"


def _in_band(epochs: int, recipe: Recipe) -> bool:
    low, high = recipe.about.epochs
    return (low or 1) <= epochs and (high is None or epochs <= high)


def _files(subfolder: str = "") -> dict[str, Path]:
    """Name to file; those of the working directory hide the packaged ones."""
    folders = [folder / subfolder for folder in reversed(paths.recipe_folders())]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def _readable(files: Mapping[str, Path]) -> tuple[list[Recipe], list[Problem]]:
    found, problems = [], Problems()
    for path in files.values():
        with problems.collected():
            found.append(_load(path, ()))
    return found, problems


def _path(name: str) -> Path | None:
    """The file of a recipe by its name, with or without `.yaml`, or by its path; None if there is none."""
    plain = name.removesuffix(".yaml").removesuffix(".yml")
    if plain != name:
        file = Path(expanded(name))
        # note: whatever is no file, by a name that is too long or a folder that may not be read, is none
        with suppress(OSError, ValueError):
            if file.is_file():
                return file
    return _files().get(plain) or _files(_ABLATIONS).get(plain.removeprefix(f"{_ABLATIONS}/"))


def _find(name: str, origin: str) -> Path:
    if (path := _path(name)) is not None:
        return path
    recipes, others = _files(), _files(_ABLATIONS)
    if "/" in name and Path(name).suffix in (".yaml", ".yml"):
        raise UserError(Problem("no such file; `train ls` lists the recipes that have a name", "recipe", name, origin))
    hint = f"did you mean {found}? " if (found := nearest(name, [*recipes, *others])) else ""
    message = f"no such recipe; {hint}one of: {', '.join(sorted(recipes))}; `train ls ablations` lists the ablations"
    raise UserError(Problem(message, "recipe", name, origin))


def _load(path: Path, trail: tuple[Path, ...]) -> Recipe:
    """The recipe in a file; `trail` holds the recipes that have it as their base."""
    if path in trail:
        raise UserError(f"{trail[-1]}: base={path.stem} leads back to itself")
    if len(trail) > _MOST_BASES:
        raise UserError(f"{trail[0]}: base={trail[1].stem} leads over more than {_MOST_BASES} others")
    values = _mapping(path)
    about = _about(values.pop("about", None), path)
    by_epochs = _by_epochs(values.pop("by_epochs", {}), path)
    published = _published(values.pop("by_fidelity", {}), path)
    base, below = values.pop("base", None), None
    own = frozenset(key for part in (values, *by_epochs.values()) for key, _ in leaves(part))
    if base is not None:
        below = _load(_find(str(base), str(path)), (*trail, path))
        values, by_epochs = _merged(below.values, values), {**below.by_epochs, **by_epochs}
        published = _merged(below.published, published)
    if type(values.get("epochs", 1)) is not int:
        raise UserError(Problem("must be a whole number", "epochs", values["epochs"], str(path)))
    return Recipe(_name(path), path, about, values, by_epochs, published, below, own)


def _name(path: Path) -> str:
    """The file's own; where another recipe has that name, with its folder's."""
    if _path(path.stem) in (None, path):
        return path.stem
    in_folders = path.parent.name == _ABLATIONS
    return f"{_ABLATIONS}/{path.stem}" if in_folders else f"{path.resolve().parent.name}-{path.stem}"


def _about(header: Any, path: Path) -> About:
    try:
        # note: strict types accept a mapping as a dataclass only in JSON
        return _header().validate_json(json.dumps(header, default=str))
    except ValidationError as error:
        told = [(".".join(map(str, ("about", *e["loc"]))), e["msg"]) for e in error.errors(include_url=False)]
        raise UserError(*(f"{path}: {where}: {message}" for where, message in told)) from None


@cache
def _header() -> TypeAdapter[About]:
    return TypeAdapter(About)


def _by_epochs(lengths: Any, path: Path) -> dict[int, dict[str, Any]]:
    if not isinstance(lengths, dict) or not all(type(n) is int and isinstance(v, dict) for n, v in lengths.items()):
        raise UserError(f"{path}: by_epochs maps numbers of epochs to the values that change at that length")
    return lengths


def _published(variants: Any, path: Path) -> dict[str, Any]:
    values = variants.get("published", {}) if isinstance(variants, dict) and variants.keys() <= {"published"} else None
    if not isinstance(values, dict) or not isinstance(values.get("algorithms", {}), dict):
        raise UserError(f"{path}: by_fidelity maps published to the values that fidelity=published changes")
    return values


def _mapping(path: Path) -> dict[str, Any]:
    try:
        return copy.deepcopy(_parsed(path, path.stat().st_mtime_ns))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


@cache
def _parsed(path: Path, _modified: int) -> dict[str, Any]:
    return read_mapping(path)


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
