"""Compose the typed run config of a command line: defaults < recipe < command line, with all errors in one report."""

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config import code, recipes
from launcher.config.builtin import FOLDER
from launcher.config.fields import expanded
from launcher.config.groups import files
from launcher.config.groups import values as group_values
from launcher.config.keys import takes_target
from launcher.config.layers import COMMAND_LINE, DEFAULTS, Layer, get, leaves, merged, put, resolve, without
from launcher.config.overrides import SEARCH_PATH, Assignment, parse, sort_words
from launcher.config.recipes import Recipe
from launcher.config.schema import GROUPS, SWITCHED, RunConfig
from launcher.config.secrets import secret_values
from launcher.config.switches import Switches
from launcher.config.targets import DOTTED_NAME, Called
from launcher.config.targets import KEY as TARGET
from launcher.config.validate import validate
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, Problems, UserError

DATA_FOLDER = "TRAIN_DATA"
# The origin of a data loader that another option chose.
AUTO = "dataloader=auto"


@dataclass
class Composed:
    """A valid run config, the origin of each dotted key and of each switch of algorithms, and notes for the user."""

    config: RunConfig
    origins: dict[str, str]
    notes: list[str] = field(default_factory=list)


def compose(words: Sequence[str]) -> Composed:
    """Compose the run config of `key=value` words; raises UserError with all errors and the nearest valid names."""
    return Composition(words).composed()


def _with_installed(config: RunConfig) -> RunConfig:
    """Return the config with the installed packages that it uses among the code."""
    own = [one for group in SWITCHED for one in getattr(config, group).values()]
    names = [type(one).__module__ for one in (*own, *vars(config).values())]
    names += [one.target for one in (*own, *vars(config).values()) if isinstance(one, Called)]
    used = code.use_installed({name.partition(".")[0] for name in (*names, config.model.registered_by or "")})
    new = [one for one in used if one.path not in config.code]
    if not new:
        return config
    paths_of, digests = [one.path for one in new], [one.sha256 for one in new]
    return replace(config, code=config.code + paths_of, code_sha256=config.code_sha256 + digests)


class Composition:
    """Hydra's `primary` config for the words of a command line, and the `layers` of values, highest priority first.

    `problems` are the errors of the words, `notes` are for the user, `switched` are the words' keys of algorithms.
    """

    def __init__(self, words: Sequence[str]):
        self.problems = Problems()
        self.notes: list[str] = []
        self.recipe: Recipe | None = None
        self.code: list[code.Own] = []
        assignments = parse(words, self.problems)
        self.switched = [one.key for one in assignments if one.key.partition(".")[0] in SWITCHED]
        name = next((one.value for one in reversed(assignments) if one.key == "recipe"), None)
        self.folders = self._folders_of(assignments)
        with paths.searching(self.folders):
            with self.problems.collected():
                self.recipe = None if name in (None, recipes.NONE) else recipes.load(str(name))
                self.code = code.use(_names_of_code(assignments, self.recipe))
                if self.code:
                    # note: its options have keys
                    self.problems.clear()
                    assignments = parse(words, self.problems)
            self._compose(assignments, self.recipe or recipes.train())

    def composed(self) -> Composed:
        """Return the config; raises as `compose`."""
        problems = self.problems
        with paths.searching(self.folders), problems.collected():
            values = resolve(self._values, self.origin, problems)
            problems += secret_values(values, self.origin)
            values, config, origins = self._with_loader(values, validate(values, self.origin))
            config = config if code.is_read_only() else _with_installed(config)
        problems.settle()
        hint = recipes.band_hint(config.epochs, self.recipe) if self.recipe else None
        origins = {key: self.origin(key) for key, _ in leaves(values)} | origins
        origins |= dict.fromkeys(self.switched, COMMAND_LINE)
        return Composed(config, origins, [*self.notes, *([hint] if hint else [])])

    def _with_loader(
        self, values: dict[str, Any], config: RunConfig
    ) -> tuple[dict[str, Any], RunConfig, dict[str, str]]:
        """Return the values and the config with the data loader that takes the place of the chosen one, if one does.

        The origin of its name is then `AUTO`.
        """
        group = "dataloader"
        typed = {key: value for key, value in values[group].items() if self.origin(f"{group}.{key}") != DEFAULTS}

        def values_with(option: str) -> dict[str, Any]:
            usual = group_values(group, option)
            own = {key: value for key, value in typed.items() if key in usual}
            return {**values, group: {**usual, **own, "name": option}}

        def config_with(option: str) -> RunConfig:
            return validate(values_with(option), self.origin)

        if (instead := config.dataloader.instead(typed, config_with)) is None:
            return values, config, {}
        option, note = instead
        self.notes += [note] if note else []
        return values_with(option), config_with(option), {f"{group}.name": AUTO}

    @cached_property
    def _values(self) -> dict[str, Any]:
        """Return the composed values with references, and with what the files do not have."""
        from launcher.config.hydra_files import composed

        values = composed(self.primary)
        for group in GROUPS:
            if TARGET in (own := values.get(group) or {}):
                values[group] = self._of_target(group, own)
        values |= {"code": [own.path for own in self.code], "code_sha256": [own.sha256 for own in self.code]}
        folder = os.environ.get(DATA_FOLDER)
        if folder and get(values, "dataset.kind") == "folder" and get(values, "dataset.path") is None:
            put(values, "dataset.path", folder)
            self.layers.insert(0, Layer(f"environment {DATA_FOLDER}", {"dataset": {"path": folder}}))
        return values

    def origin(self, key: str) -> str:
        """Return the origin of a dotted key: the first layer that sets it or a key inside it."""
        return next((layer.origin for layer in self.layers if layer.sets(key)), DEFAULTS)

    def _of_target(self, group: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a group with a `_target_`: those of the layer that sets it, and of higher ones."""
        above = list(itertools.takewhile(lambda layer: not layer.sets(f"{group}.{TARGET}"), self.layers))
        if len(above) == len(self.layers):  # note: the class of a packaged option has its target
            return {key: value for key, value in values.items() if key != TARGET}
        own, option = self.layers[len(above)], self.options.get(group)
        kept = {key: value for key, value in values.items() if any(one.sets(f"{group}.{key}") for one in (*above, own))}
        is_option = own.origin == f"{group}={option}"
        return kept | {"name": option if is_option else str(values[TARGET]).rpartition(".")[2]}

    def _folders_of(self, assignments: Sequence[Assignment]) -> list[Path]:
        """Return the folders of `--config-dir`."""
        values = [one.value for one in assignments if one.key == SEARCH_PATH]
        names = [str(name) for value in values for name in (value if isinstance(value, list) else [value])]
        folders = {name: Path(name.removeprefix("file://")) for name in names}
        missing = [name for name, folder in folders.items() if not folder.is_dir()]
        self.problems += [Problem("no such folder; create it", SEARCH_PATH, name, COMMAND_LINE) for name in missing]
        return list(folders.values())

    def _compose(self, assignments: Sequence[Assignment], top: Recipe) -> None:
        from launcher.config.hydra_files import QUIET, Primary

        chosen, setting = sort_words(assignments, self.problems)
        typed: dict[str, Any] = {one.key: one.value for one in setting}
        self._choose_dataset(chosen, path_of(typed), top)
        self.options = {**top.options, **chosen}
        files = self._files(top, typed)
        self._note_replaced(chosen, top)
        # note: a published variant changes values, also those of what a recipe on its recipe turns off
        switched = [Switches(group, [one for one in files if one.kind != recipes.PUBLISHED]) for group in SWITCHED]
        values: dict[str, Any] = {"recipe": top.name if self.recipe else None} if "recipe" in typed else {}
        for switches in switched:
            switches.apply(assignments, self.problems)
            setting += switches.values()
        for one in (one for one in setting if one.key != "recipe"):
            put(values, one.key, one.value)
        used = [layer.used_with(self.options) for layer in files]
        self.layers = [Layer(COMMAND_LINE, values, chosen), *used, *_own_options(self.options)]
        changed = {new.path: new.values for new, old in zip(used, files, strict=True) if new.values != old.values}
        others = recipes.options_of(files)
        lists = {one.group: options for one in switched if (options := one.options()) is not None}
        values = merged(values, {one.group: dict.fromkeys(one.off()) for one in switched})
        # note: Hydra reads overrides of the defaults list last
        entries = [{group: options} for group, options in others.items()]
        entries += [{f"override {group}": option} for group, option in {**chosen, **lists}.items()]
        values["defaults"] = [top.name, *entries, *QUIET, "_self_"]
        self.primary = Primary(values, {**self.options, **lists, **others}, top.name, top.path, changed)

    def _choose_dataset(self, chosen: dict[str, str], path: Any, top: Recipe) -> None:
        """Choose the option of `dataset` that reads a path, unless one is typed, and note it."""
        usual = str(top.options.get("dataset"))
        if "dataset" in chosen or not path or (option := dataset_at(str(path), usual)) == usual:
            return
        chosen["dataset"] = option
        # note: the built-in images are of no folder of the user's
        keep = "" if usual not in _datasets()["by_files"] else f"; type dataset={usual} to keep that"
        self.notes.append(f"{path} is read as dataset={option}{keep}")

    def _files(self, top: Recipe, typed: Mapping[str, Any]) -> list[Layer]:
        """Return the layers of a recipe's files, highest priority first, and note a variant that it does not have."""
        epochs = typed.get("epochs")
        epochs = epochs if type(epochs) is int else top.get("epochs")
        as_published = (typed.get("fidelity") or top.get("fidelity")) == "published"
        if as_published and not any(recipe.published for recipe in top.chain()):
            whose = f"recipe={top.name} has no" if self.recipe else "without a recipe there is no"
            self.notes.append(f"fidelity=published has no effect: {whose} published variant")
        return top.layers(epochs, as_published=as_published)

    def _note_replaced(self, chosen: Mapping[str, str], top: Recipe) -> None:
        """Note the values of recipes that are of other options than the chosen ones, except of a built-in data set."""
        for group, option in chosen.items():
            if group == "dataset" and group_values(group, str(top.options[group])).get("kind") != FOLDER:
                continue
            others = [recipe.values for recipe in top.chain() if recipe.options.get(group) != option]
            values = [f"{key}={value}" for own in others for key, value in leaves({group: own.get(group, {})})]
            if replaced := [one for one in values if one.startswith(f"{group}.")]:
                self.notes.append(f"{group}={option} replaces the recipe's {', '.join(replaced)}")


def _names_of_code(assignments: Sequence[Assignment], recipe: Recipe | None) -> list[str]:
    """Return what the words name, or else the recipe."""
    values = [one.value for one in assignments if one.key == code.KEY] or [recipe.get(code.KEY) if recipe else None]
    names = values[-1] if isinstance(values[-1], list) else [values[-1]]
    return [str(name) for name in names if name is not None]


def _own_options(chosen: Mapping[str, Any]) -> list[Layer]:
    """Return the values in the user's own files of the options chosen by group."""
    of_groups = {(group, str(chosen[group])): files(group) for group in GROUPS if group in chosen}
    return [
        Layer(f"{group}={option}", {group: without(_own_values(names[option], group), {"defaults"})})
        for (group, option), names in of_groups.items()
        if option in names and paths.CONF not in names[option].parents
    ]


def _own_values(path: Path, group: str) -> dict[str, Any]:
    """Read an option of the user's; raises UserError if it is of another application that uses Hydra.

    An option with a `_target_` must not share its name with a packaged one.
    """
    values = read_mapping(path)
    own = {TARGET} if takes_target(group) and not (paths.CONF / group / path.name).exists() else set()
    if foreign := next((key for key in values if key.startswith("_") and key.endswith("_") and key not in own), None):
        message = (
            f"is an option of another application ({foreign}: ...), which {group}={path.stem} means in this folder"
        )
        raise UserError(f"{path}:1: {message}; rename it, or type train in another folder")
    if takes_target(group) and not values.keys() & {TARGET, "name", "defaults"}:
        raise UserError(
            f"{path}: has no {TARGET}; write {TARGET}: {DOTTED_NAME}, or defaults: [OPTION, _self_] to change one"
        )
    return values


def path_of(typed: Mapping[str, Any]) -> Any:
    """Return the path of a command line's images, or of their FFCV files, which decide what the images are."""
    files = [typed.get(f"dataloader.{split}") for split in ("train", "val")]
    paths_of = [typed.get("dataset.path"), *files, os.environ.get(DATA_FOLDER)]
    return next((path for path in paths_of if path), None)


def dataset_at(path: str, usual: str | None = None) -> str:
    """Return the option of `dataset` for a path by conf/auto.yaml, instead of `usual`, None for built-in images.

    A missing folder keeps the usual option; the user's own options always stay.
    """
    by_files: dict[str, dict[str, int]] = _datasets()["by_files"]
    if usual is not None and usual not in _datasets()["instead_of"]:
        return usual
    *_, last = by_files
    with suppress(ValueError, OSError):
        folder = Path(expanded(path))
        for option, patterns in by_files.items():
            if any(len(list(folder.glob(pattern))) == count for pattern, count in patterns.items()):
                return option
        if folder.is_dir():
            return last
    return usual if usual is not None and usual in by_files else last


@cache
def _datasets() -> dict[str, Any]:
    return dict(read_mapping(paths.CONF / "auto.yaml")["datasets"])
