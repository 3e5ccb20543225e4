"""Hydra's composition of files that are read here, as untrusted, and put into its ConfigStore."""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher import paths
from launcher.config.groups import values
from launcher.config.layers import NOT_PLAIN, is_plain, leaves
from launcher.config.rented import rows
from launcher.config.schema import SWITCHED
from launcher.config.similar import did_you_mean
from launcher.config.yaml_file import defaults_list, package, read_mapping
from launcher.errors import Problem, UserError, one_line

# The name of the primary config, which extends the recipe.
PRIMARY = "command_line"
# Entries of its defaults list that turn off what Hydra would compose for its own command line.
QUIET = (
    *({f"override hydra/{group}": None} for group in ("help", "hydra_help", "output", "launcher", "sweeper")),
    *({f"override hydra/{group}": "none"} for group in ("job_logging", "hydra_logging")),
)
# Defaults lists may loop; those of an ordinary run have 40 entries.
_MOST_FILES = 200
# What stands beside the group, or the name of another config, in an entry of a defaults list.
_BESIDE = re.compile(r"^(override +|optional +)+|@.*")
# Errors of Hydra for malformed files.
_FAILURES = (HydraException, OmegaConfBaseException, OSError, RecursionError, AssertionError, TypeError, ValueError)
# What Hydra reports of a group that a recipe chooses again.
_TWICE = re.compile(r"(\S+) appears more than once")


@dataclass(frozen=True)
class Primary:
    """The primary config of a command line: its defaults list and values, and the recipe that it extends.

    options: of each group. recipe, file: its name, and its file, which may lie elsewhere. changed: the contents of the
    recipes' files that this command line changes.
    """

    values: dict[str, Any]
    options: Mapping[str, Any]
    recipe: str
    file: Path
    changed: Mapping[Path, dict[str, Any]]


def composed(primary: Primary) -> dict[str, Any]:
    """Compose the values, with references unresolved.

    Raises UserError if Hydra cannot compose the files.
    """
    with _hydra(primary):
        container = OmegaConf.to_container(compose(PRIMARY))
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items() if key != "about"}


def print_defaults_tree(primary: Primary) -> None:
    """Print Hydra's `--info defaults-tree`."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        with _hydra(primary):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            hydra.show_info("defaults-tree", PRIMARY, [])
    finally:
        # note: Hydra changes the root logger
        root.level, root.handlers = before


@contextmanager
def _hydra(primary: Primary) -> Iterator[None]:
    """Initialize Hydra with a store of the primary config and of all files that it needs."""
    store = ConfigStore.instance()
    before = store.repo
    store.repo = _Uncopied(before)
    try:
        _Files(primary, store.repo).add_all()
        with initialize(config_path=None, job_name=PRIMARY, version_base="1.3"), warnings.catch_warnings():
            # note: a file's values replace those of its defaults list with and without `_self_`
            warnings.filterwarnings("ignore", ".*missing `_self_`")
            yield
    except _FAILURES as error:
        reason = one_line(" ".join(str(error).split())) or type(error).__name__
        remedy = "correct its values or defaults list"
        if twice := _TWICE.match(reason):
            remedy = f"write - override {twice[1]}: OPTION in its defaults list"
        raise UserError(f"{primary.recipe} cannot be composed: {reason}; {remedy}") from None
    finally:
        store.repo = before


class _Uncopied(dict[str, Any]):
    """The configs of one composition: Hydra copies each that it loads, and would copy all of them before."""

    def __deepcopy__(self, memo: object) -> "_Uncopied":
        return self


class _Files:
    """Puts the files that defaults lists name into the repository of Hydra's ConfigStore, each after checks."""

    def __init__(self, primary: Primary, repo: _Uncopied):
        self._primary, self._repo, self._count = primary, repo, 0

    def add_all(self) -> None:
        """Add the primary config, and all files that it needs."""
        self._store(PRIMARY, OmegaConf.create(self._primary.values))
        self._add("", self._primary.recipe, self._primary.file)
        for group, chosen in self._primary.options.items():
            for option in chosen if isinstance(chosen, list) else [chosen]:
                self._find(group, option, self._primary.file)

    def _find(self, group: str, name: str, named_by: Path) -> None:
        """Add the first file of a name in the search path; raises UserError without one."""
        if name == "_self_":
            return
        folder, _, stem = (name if name.startswith("/") else f"{group}/{name}").strip("/").rpartition("/")
        parts = Path(folder, f"{stem}.yaml")
        found = None
        # note: a name that is too long or in an unreadable folder counts as missing
        with suppress(OSError, ValueError):
            if ".." not in parts.parts:
                found = next((file for root in paths.search_path() if (file := root / parts).is_file()), None)
        if found is None and stem in rows(folder):
            self._store(stem, OmegaConf.create(values(folder, stem)), folder)
            return
        if found is None:
            known = {file.stem for root in paths.search_path() for file in (root / folder).glob("*.yaml")} | {
                *rows(folder)
            }
            what = f"its defaults list has no existing {folder or 'recipe'}: {stem}"
            raise UserError(f"{named_by}: {what}; {did_you_mean(stem, known)}")
        self._add(folder, stem, found)

    def _add(self, group: str, name: str, path: Path) -> None:
        self._count += 1
        if self._count > _MOST_FILES:
            raise UserError("too many configs in the defaults lists of the recipe and its options; remove the loop")
        node, entries, at = _checked(path, _stamp(path))
        at = at or (f"{group}.{name}" if group in SWITCHED else None)
        changed = self._primary.changed.get(path)
        self._store(name, node if changed is None else OmegaConf.create(changed), group, at)
        for entry, chosen in entries:
            inner = _BESIDE.sub("", entry)
            inner = inner[1:] if inner.startswith("/") else f"{group}/{inner}".strip("/")
            # note: of a recipe's groups, Hydra needs the options that are chosen at last
            if not (inner in self._primary.options and not group) and not inner.startswith("hydra/"):
                for option in chosen if isinstance(chosen, list) else [chosen]:
                    self._find(inner, option if entry else _BESIDE.sub("", option), path)

    def _store(self, name: str, node: DictConfig, group: str = "", at: str | None = None) -> None:
        folder: dict[str, Any] = self._repo
        for part in group.split("/") if group else ():
            folder = folder.setdefault(part, {})
        # note: `ConfigStore.store` would copy the values
        folder[f"{name}.yaml"] = ConfigNode(f"{name}.yaml", node, group or None, at, None)


@lru_cache(maxsize=500)
def _checked(path: Path, stamp: tuple[int, ...]) -> tuple[DictConfig, list[tuple[str, Any]], str | None]:
    """Return the contents, the defaults list and the package of a file.

    Raises UserError if it has references to anything but keys, or changes Hydra.
    """
    values = read_mapping(path)
    if wrong := [Problem(NOT_PLAIN, key, value, str(path)) for key, value in leaves(values) if not is_plain(value)]:
        raise UserError(*wrong)
    if "hydra" in values:
        raise UserError(f"{path}: hydra is not part of a run's config; remove it")
    return OmegaConf.create(values), defaults_list(values, path), package(path)


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes with the contents of a file."""
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
