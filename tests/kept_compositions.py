"""Keep what Hydra composes over processes and runs, for the same words, files and code."""

import hashlib
import pickle
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config import hydra_files
from launcher.config.hydra_files import Primary
from launcher.config.layers import get, leaves, put
from launcher.config.schema import SWITCHED
from launcher.files import atomic

_ROOT = Path(__file__).parents[1]
_ALL = _ROOT / ".pytest_cache" / "compositions"
_composed, _kept = hydra_files.composed, dict[str, bytes]()


def keep() -> None:
    hydra_files.composed = composed


def composed(primary: Primary) -> dict[str, Any]:
    """Compose, or return what was composed of equal files; plain values are set in what was composed without them."""
    # note: a group of several options is an empty mapping unless some are typed
    defaults: dict[str, Any] = {group: {} for group in SWITCHED if group in primary.values}
    defaults["defaults"] = primary.values["defaults"]
    own = {key: value for key, value in primary.values.items() if value != {} and key != "defaults"}
    values = _of_files(replace(primary, values=defaults)) if all(map(_is_plain, dict(leaves(own)).values())) else None
    for key, value in leaves(own) if values is not None else ():
        if isinstance(get(values, key, own), Mapping):
            return _of_files(primary)
        put(values, key, value)
    return _of_files(primary) if values is None else values


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | None) or (isinstance(value, str) and not {*value} & {*"?$\\"})


def _of_files(primary: Primary) -> dict[str, Any]:
    folders = [*paths.search_path(), primary.file.parent]
    key = hashlib.sha256(repr((primary, [*map(_files, folders)])).encode()).hexdigest()
    file = _folder() / key
    if key not in _kept:
        with suppress(OSError, EOFError):
            _kept[key] = file.read_bytes()
    if key not in _kept:
        _kept[key] = pickle.dumps(_composed(primary))
        if tempfile.gettempdir() not in repr(primary):
            # note: a test may make all writes fail
            with suppress(OSError):
                _make_folder()
                with atomic.writing(file) as temporary:
                    temporary.write_bytes(_kept[key])
    values: dict[str, Any] = pickle.loads(_kept[key])
    return values


def _files(folder: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Return the YAML files of a folder of the search path, with what changes with their contents."""
    # note: no test changes the packaged ones
    return _packaged(folder) if folder in paths._RESOLVED else _listed(folder)


@lru_cache
def _packaged(folder: Path) -> list[tuple[str, tuple[int, ...]]]:
    return _listed(folder)


def _listed(folder: Path) -> list[tuple[str, tuple[int, ...]]]:
    # note: a link may lead nowhere
    return sorted((str(path), hydra_files._stamp(path)) for path in folder.glob("**/*.yaml") if path.is_file())


@lru_cache
def _make_folder() -> None:
    """Make the folder of this code, and remove those of others."""
    _folder().mkdir(parents=True, exist_ok=True)
    for other in _ALL.iterdir():
        if other != _folder():
            shutil.rmtree(other, ignore_errors=True)


@lru_cache
def _folder() -> Path:
    """Return the folder of what is composed by this code and its own files."""
    own = sorted((_ROOT / "launcher" / "config").rglob("*.py"))
    versions = [sys.version, version("hydra-core"), version("omegaconf")]
    contents = [path.read_bytes() for path in own]
    return _ALL / hashlib.sha256(b"".join([*contents, *map(str.encode, versions)])).hexdigest()
