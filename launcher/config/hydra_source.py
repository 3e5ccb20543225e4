"""Hydra's composition, with a config source that reads every file as untrusted."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
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


def composed(command: Command) -> dict[str, Any]:
    """Compose the values, with references unresolved.

    Raises UserError if Hydra cannot compose the files.
    """
    with _hydra(command):
        values = OmegaConf.to_container(compose(command.config_name, [*command.overrides]))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "about"}


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
    ConfigFiles.command, ConfigFiles.lookups = command, 0
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
    lookups: ClassVar[int] = 0

    @staticmethod
    def scheme() -> str:
        return _SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        path = self._file(config_path)
        assert path is not None
        assert self.command is not None
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
        folders = self.command.folders if self.command is not None else ()
        return sorted({path.stem for folder in folders for path in (folder / config_path).glob("*.yaml")})

    def _file(self, name: str) -> Path | None:
        if self.command is not None and name == self.command.config_name:
            return self.command.file
        return self._first(f"{name}.yaml", Path.is_file)

    def _first(self, name: str, exists: Callable[[Path], bool]) -> Path | None:
        ConfigFiles.lookups += 1
        if ConfigFiles.lookups > _MOST_LOOKUPS:
            raise UserError("too many configs in the defaults lists of the recipe and its options; remove the loop")
        if self.command is not None and ".." not in Path(name).parts and not Path(name).is_absolute():
            # note: a name that is too long or in an unreadable folder counts as missing
            with suppress(OSError, ValueError):
                return next((folder / name for folder in self.command.folders if exists(folder / name)), None)
        return None
