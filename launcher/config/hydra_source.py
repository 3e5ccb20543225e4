"""Hydra's composition, with a config source that reads every file as untrusted."""

import logging
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.layers import NOT_PLAIN, is_plain, leaves
from launcher.config.schema import SWITCHED
from launcher.config.yaml_file import defaults_list, package, read_mapping
from launcher.errors import Problem, UserError, one_line

_SCHEME = "train"
# Defaults lists may loop; an ordinary run looks up 500 files.
_MOST_LOOKUPS = 20_000
# Compositions that a process keeps, of 20 kB each.
_MOST_KEPT = 200
# The start of Hydra's overrides that set or add a value.
_SETS = "++"
# Errors of Hydra for malformed files.
_FAILURES = (HydraException, OmegaConfBaseException, OSError, RecursionError, AssertionError, TypeError, ValueError)


@dataclass(frozen=True)
class Command:
    """Input of a composition: the primary config, its overrides, and the folders to search.

    `file` is the primary config's file, which may lie elsewhere; `values` replace the contents of some files.
    """

    config_name: str
    overrides: Sequence[str]
    folders: Sequence[Path]
    file: Path
    values: Mapping[Path, dict[str, Any]]


@dataclass
class Lookups:
    """What a composition found by name and condition, listed by group, and the stamps of the files that it read."""

    found: dict[tuple[str, Callable[[Path], bool]], Path | None] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    stamps: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    count: int = 0

    def hold(self, command: Command) -> bool:
        """Return whether a composition of the same command would find the same files."""
        return (
            all(_first(command, *lookup) == path for lookup, path in self.found.items())
            and all(_listed(command, group) == names for group, names in self.listed.items())
            and all(_stamp(path) == stamp for path, stamp in self.stamps.items())
        )


def composed(command: Command) -> dict[str, Any]:
    """Compose the values, with references unresolved.

    Raises UserError if Hydra cannot compose the files.
    """
    # note: Hydra takes 0.1 s for the files of a command, and studies and tests change only values
    sets = [word for word in command.overrides if word.startswith(_SETS)]
    values = _of_files(replace(command, overrides=[word for word in command.overrides if not word.startswith(_SETS)]))
    if all(_set(values, *_parsed(word)) for word in sets):
        return values
    return _of_files(command)


_KEPT: dict[str, tuple[bytes, Lookups]] = {}


def _of_files(command: Command) -> dict[str, Any]:
    """Return the values that Hydra composes, or has composed of the same command and the same files."""
    key = repr(command)
    if key in _KEPT and _KEPT[key][1].hold(command):
        kept: dict[str, Any] = pickle.loads(_KEPT[key][0])
        return kept
    with _hydra(command):
        container = OmegaConf.to_container(compose(command.config_name, [*command.overrides]))
        lookups = ConfigFiles.lookups
    assert isinstance(container, dict)
    values = {str(key): value for key, value in container.items() if key != "about"}
    _KEPT.pop(key if key in _KEPT or len(_KEPT) < _MOST_KEPT else next(iter(_KEPT)), None)
    _KEPT[key] = pickle.dumps(values), lookups
    return values


@lru_cache(maxsize=1000)
def _parsed(word: str) -> tuple[str, Any]:
    """Return key and value of an override; an empty key if Hydra refuses it."""
    with suppress(HydraException):
        override = OverridesParser.create().parse_override(word)
        return override.key_or_group, override.value()
    return "", None


def _set(values: dict[str, Any], key: str, value: Any) -> bool:
    """Set a value as Hydra does, unless it is of those that Hydra may merge; return whether it is set."""
    *parents, leaf = key.split(".")
    below: Any = values
    for parent in parents:
        below = below.get(parent) if isinstance(below, dict) else None
    is_list = type(value) is list
    if not isinstance(below, dict) or not leaf or (is_list and isinstance(below.get(leaf), dict)):
        return False
    if not all(isinstance(one, bool | int | float | str | None) for one in (value if is_list else [value])):
        return False
    below[leaf] = [*value] if is_list else value
    return True


def print_defaults_tree(command: Command) -> None:
    """Print Hydra's `--info defaults-tree`."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        with _hydra(command):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            hydra.show_info("defaults-tree", command.config_name, [*command.overrides])
    finally:
        # note: Hydra changes the root logger
        root.level, root.handlers = before


# What Hydra reports of a group that a recipe chooses again.
_TWICE = re.compile(r"(\S+) appears more than once")


@contextmanager
def _hydra(command: Command) -> Iterator[None]:
    for plugin in (ConfigFiles, SearchPath):
        Plugins.instance().register(plugin)
    ConfigFiles.command, ConfigFiles.lookups = command, Lookups()
    try:
        with initialize(config_path=None, job_name=_SCHEME, version_base="1.3"), warnings.catch_warnings():
            # note: a file's values replace those of its defaults list with and without `_self_`
            warnings.filterwarnings("ignore", ".*missing `_self_`")
            yield
    except _FAILURES as error:
        reason = one_line(" ".join(str(error).split())) or type(error).__name__
        remedy = "correct its values or defaults list"
        if twice := _TWICE.match(reason):
            remedy = f"write - override {twice[1]}: OPTION in its defaults list"
        raise UserError(f"{command.config_name} cannot be composed: {reason}; {remedy}") from None
    finally:
        ConfigFiles.command = None


class SearchPath(SearchPathPlugin):
    """Restrict Hydra's search to the files of the command and its own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if ConfigFiles.command is not None:
            search_path.append(provider=_SCHEME, path=f"{_SCHEME}://")


class ConfigFiles(ConfigSource):
    """The files of one command's folders."""

    command: ClassVar[Command | None] = None
    lookups: ClassVar[Lookups] = Lookups()

    @staticmethod
    def scheme() -> str:
        return _SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        path = self._file(config_path)
        assert path is not None
        assert self.command is not None
        self.lookups.stamps[path] = _stamp(path)
        values = self.command.values[path] if path in self.command.values else read_mapping(path)
        if wrong := [Problem(NOT_PLAIN, key, value, str(path)) for key, value in leaves(values) if not is_plain(value)]:
            raise UserError(*wrong)
        defaults_list(values, path)
        if "hydra" in values:
            raise UserError(f"{path}: hydra is not part of a run's config; remove it")
        group = path.parent.name
        header = {"package": package(path) or (f"{group}.{path.stem}" if group in SWITCHED else None)}
        return ConfigResult(config=OmegaConf.create(values), header=header, path=str(path), provider=self.provider)

    def is_config(self, config_path: str) -> bool:
        return self._file(config_path) is not None

    def is_group(self, config_path: str) -> bool:
        return self._first(config_path, Path.is_dir) is not None

    def available(self) -> bool:
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if self.command is None:
            return []
        return self.lookups.listed.setdefault(config_path, _listed(self.command, config_path))

    def _file(self, name: str) -> Path | None:
        if self.command is not None and name == self.command.config_name:
            return self.command.file
        return self._first(f"{name}.yaml", Path.is_file)

    def _first(self, name: str, exists: Callable[[Path], bool]) -> Path | None:
        self.lookups.count += 1
        if self.lookups.count > _MOST_LOOKUPS:
            raise UserError("too many configs in the defaults lists of the recipe and its options; remove the loop")
        if self.command is None:
            return None
        if (name, exists) not in self.lookups.found:
            self.lookups.found[name, exists] = _first(self.command, name, exists)
        return self.lookups.found[name, exists]


def _first(command: Command, name: str, exists: Callable[[Path], bool]) -> Path | None:
    """Return the first file or folder of a name in the folders of a command; None without one."""
    if ".." in Path(name).parts or Path(name).is_absolute():
        return None
    # note: a name that is too long or in an unreadable folder counts as missing
    with suppress(OSError, ValueError):
        return next((folder / name for folder in command.folders if exists(folder / name)), None)
    return None


def _listed(command: Command, group: str) -> list[str]:
    return sorted({path.stem for folder in command.folders for path in (folder / group).glob("*.yaml")})


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes with the contents of a file; empty if it is missing."""
    with suppress(OSError):
        facts = path.stat()
        return facts.st_ino, facts.st_size, facts.st_mtime_ns
    return ()
