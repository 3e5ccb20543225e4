"""Find recipe files by name; read their headers and the chain of recipes that their defaults lists extend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass as typed_dataclass

from launcher import paths
from launcher.config.fields import STRICT, Count, Positive, expanded
from launcher.config.keys import line_instead
from launcher.config.layers import COMMAND_LINE, DEFAULTS, Layer
from launcher.config.similar import nearest
from launcher.config.validate import typed
from launcher.config.yaml_file import defaults_list, read_mapping
from launcher.counts import count_of
from launcher.errors import Problem, Problems, UserError

# The recipes whose bands cover all lengths, to suggest one for a length outside another recipe's band.
BANDED = ("mild", "medium", "hot")
TRAIN = "train"
# The words that choose one for the images and the machine, as no word does, and none.
AUTO, NONE = "auto", "none"

LENGTHS, PUBLISHED = "lengths", "published"
_MOST_BASES = 10


@typed_dataclass(frozen=True, config=STRICT)
class Published:
    """One published result, a top-1 or a perplexity; `epochs` is null if its source states none.

    Accuracies in percent, `minutes` of training on `hardware`, without evaluation and checkpoints.
    """

    epochs: Count | None
    minutes: Positive | None
    hardware: str
    source: str
    top1: Positive | None = None
    top5: Positive | None = None
    perplexity: Positive | None = None

    def __post_init__(self) -> None:
        if (self.top1 is None) == (self.perplexity is None):
            raise ValueError("needs either top1 or perplexity")

    @property
    def quality(self) -> str:
        """Return the result as text, with the name of a metric other than top-1."""
        return f"perplexity {self.perplexity:g}" if self.top1 is None else f"{self.top1:g}"

    @property
    def sentence(self) -> str:
        """Return quality, length, time and machine in words."""
        quality = self.quality if self.top1 is None else f"top-1 {self.quality} %"
        length = f" after {count_of(self.epochs, 'epoch')}" if self.epochs else ""
        return f"{quality}{length}{f' in {self.minutes:g} min' if self.minutes else ''} on {self.hardware}"


@typed_dataclass(frozen=True, config=STRICT)
class About:
    """A recipe's header: its summary, its shortest and longest length in epochs (null: no limit), and results."""

    summary: str = ""
    epochs: Annotated[list[Count | None], Field(min_length=2, max_length=2)] = field(default_factory=lambda: [1, None])
    published: list[Published] = field(default_factory=list)

    def covers(self, epochs: int) -> bool:
        """Return whether the recipe is meant for a length."""
        low, high = self.epochs
        return (low or 1) <= epochs and (high is None or epochs <= high)


@dataclass(frozen=True, eq=False)
class Recipe:
    """A recipe file, or `train`, the base of all recipes.

    `values` are its contents, `base` is the recipe that it extends. `lengths` maps numbers of epochs to files of
    values; `published` is the file of the values that its published code has instead.
    """

    name: str
    path: Path
    about: About
    values: dict[str, Any]
    base: Recipe | None = None
    lengths: dict[int, Path] = field(default_factory=dict)
    published: Path | None = None

    def chain(self) -> Iterator[Recipe]:
        """Yield this recipe, the one that it extends, and so on up to `train`."""
        yield self
        if self.base is not None:
            yield from self.base.chain()

    @cached_property
    def chosen(self) -> dict[str, Any]:
        """Return the options of its defaults list by group."""
        entries = defaults_list(self.values, self.path)
        return {re.sub(r"^override +/?", "", group): option for group, option in entries if group}

    @cached_property
    def options(self) -> dict[str, Any]:
        """Return the option of each group, from this recipe or those that it extends."""
        return {**(self.base.options if self.base else {}), **self.chosen}

    def changes_at(self, epochs: Any) -> Path | None:
        """Return the file of values for the nearest length; None if that is also nearest to the recipe's own length."""
        lengths = sorted(self.lengths)
        if not lengths or {type(epochs), type(self.get("epochs"))} != {int}:
            return None
        nearest, own = (min(lengths, key=lambda n: abs(n - to)) for to in (epochs, self.get("epochs")))
        return None if nearest == own else self.lengths[nearest]

    def layers(self, epochs: Any, *, as_published: bool) -> list[Layer]:
        """Return the layers of its files, highest priority first: published variants, changes at a length, recipes."""
        published, lengths, chain = [], [], []
        for recipe in self.chain():
            base = f", base of {self.name}" if recipe is not self else ""
            origin = f"recipe {recipe.name}{base}" if recipe.base else DEFAULTS
            chain.append(Layer(origin, recipe.values, recipe.chosen, recipe.path, recipe.options))
            if file := recipe.changes_at(epochs):
                lengths.append(Layer(origin, read_mapping(file), {}, file, recipe.options, LENGTHS))
            if as_published and (file := recipe.published):
                values = read_mapping(file)
                published.append(Layer("fidelity=published", values, {}, file, recipe.options, PUBLISHED))
        return [*published, *lengths, *chain]

    def get(self, key: str) -> Any:
        """Return a top-level key's value from the first recipe of the chain that has it; None without one."""
        return next((recipe.values[key] for recipe in self.chain() if key in recipe.values), None)


def load(name: str) -> Recipe:
    """Read a recipe or ablation by name or path, and those that it extends.

    Raises UserError if the recipe does not exist or is invalid.
    """
    return _load(_find(name, COMMAND_LINE))


def options_of(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the options by group that are the files of a recipe's lengths and published variants."""
    options: dict[str, Any] = {}
    for kind in (LENGTHS, PUBLISHED):
        for file in (layer.path for layer in reversed(layers) if layer.kind == kind):
            options.setdefault(file.parent.name if kind == PUBLISHED else f"{LENGTHS}/{file.parent.name}", []).append(
                file.stem
            )
    return options


def names() -> list[str]:
    """Return the names of all recipes and ablations, without reading them."""
    return sorted(_files("", paths.ABLATIONS))


def similar(name: str) -> list[str]:
    """Return the recipe or ablation nearest to a name, or those that share most of its parts, such as a2 of rsb_a2."""
    known = names()
    if like := nearest(name, known):
        return [like]
    parts = {*re.split("[-_]", name.lower())}
    shared = {one: (len(parts & {*one.split("_")}), -one.count("_")) for one in known}
    most = max(shared.values(), default=(0, 0))
    return [one for one in known if most[0] and shared[one] == most]


def listing(problems: Problems | None = None, folder: str = "") -> list[Recipe]:
    """Return all recipes, the banded ones first; `problems` collects the errors of invalid files."""
    loaded = _loaded(_files(folder).values(), Problems() if problems is None else problems)
    return sorted(loaded, key=lambda r: (BANDED.index(r.name) if r.name in BANDED else len(BANDED), r.name))


def _loaded(files: Iterable[Path], problems: Problems) -> list[Recipe]:
    loaded = []
    for path in files:
        with problems.collected():
            loaded.append(_load(path))
    return loaded


def ablations(problems: Problems | None = None) -> list[Recipe]:
    """Return all ablations, recipes that change one thing of another; `problems` as for `listing`."""
    return listing(problems, paths.ABLATIONS)


def band_hint(epochs: int, recipe: Recipe) -> str | None:
    """Return a note with the banded recipe for a length outside the recipe's band; None inside it."""
    if recipe.about.covers(epochs):
        return None
    low, high = recipe.about.epochs
    band = f"{low} or more" if high is None else f"{low}" if low == high else f"{low or 1} to {high}"
    files = _files("")
    banded = _loaded([files[name] for name in BANDED if name in files], Problems())
    meant = [other.name for other in banded if other.about.covers(epochs)]
    others = f"; use recipe={meant[0]} for {epochs}" if meant else f", not {epochs}"
    return f"{recipe.name} is meant for {band} {'epoch' if low == high == 1 else 'epochs'}{others}"


def _files(*subfolders: str) -> dict[str, Path]:
    """Return files by name; the working directory hides packaged files, the first subfolder hides the others."""
    roots = reversed(paths.recipe_folders())
    folders = [root / subfolder for root in roots for subfolder in reversed(subfolders)]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml")) if path.stem != TRAIN}


def find(name: str) -> Path | None:
    """Return the file of a recipe by name, with or without `.yaml`, or by path; None if it does not exist."""
    plain = name.removesuffix(".yaml").removesuffix(".yml")
    if plain != name:
        # note: a name that is too long or in an unreadable folder is not a file
        with suppress(OSError, ValueError):
            if (file := Path(expanded(name))).is_file():
                return file.resolve()
    return _files("", paths.ABLATIONS).get(plain)


def _find(name: str, origin: str) -> Path:
    if (path := find(name)) is not None:
        return path
    if "/" in name and Path(name).suffix in (".yaml", ".yml"):
        raise UserError(Problem("no such file; `train ls` lists the recipes", "recipe", name, origin))
    if line := line_instead("recipe", name):
        raise UserError(Problem(f"no such recipe; {line}", "recipe", name, origin))
    alike = similar(name)
    hint = f"did you mean {' or '.join(alike)}? " if alike else ""
    names_of_recipes = ", ".join(sorted(_files("")))
    message = f"no such recipe; {hint}one of: {names_of_recipes}; `train ls ablations` lists the ablations"
    raise UserError(Problem(message, "recipe", name, origin))


def _load(path: Path, trail: tuple[Path, ...] = ()) -> Recipe:
    """Load the recipe of a file; `trail` holds the recipes that extend it."""
    if len(trail) > _MOST_BASES:
        raise UserError(
            f"{trail[0]}: its chain of defaults lists has a loop or more than {_MOST_BASES} recipes; remove some"
        )
    values = read_mapping(path)
    bases = [name for group, name in defaults_list(values, path) if not group]
    if not bases or bases[0] == "_self_":
        remedy = "start the file with `defaults: [train, _self_]`, or with the recipe to extend"
        raise UserError(f"{path}: a recipe needs a defaults list; {remedy}")
    name = bases[0].removeprefix("/")
    base = train() if name == TRAIN else _load(_find(name, str(path)), (*trail, path))
    header = values.get("about")
    # note: a recipe without a header is meant for the lengths of the recipe that it extends
    about = About(epochs=base.about.epochs) if header is None else typed(About, header, lambda key: str(path), "about.")
    name = path.stem if find(path.stem) in (None, path) else f"{path.parent.name}-{path.stem}"
    folder = path.parent.parent if path.parent.name == paths.ABLATIONS else path.parent
    lengths = {int(file.stem): file for file in (folder / LENGTHS / name).glob("*.yaml") if file.stem.isdecimal()}
    published = folder / PUBLISHED / f"{name}.yaml"
    return Recipe(name, path, about, values, base, lengths, published if published.is_file() else None)


def train() -> Recipe:
    """Return the root of every recipe; the defaults list of train.yaml chooses an option for each group."""
    path = next(file for folder in paths.search_path() if (file := folder / f"{TRAIN}.yaml").is_file())
    return Recipe(TRAIN, path, About(), read_mapping(path))
