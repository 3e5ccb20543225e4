"""Code of the user's: files and packages named by `code=`, whose options count as ours.

Nothing runs that the user has not named: the cache keeps the SHA-256 of what was named on this machine, and code of a
run or an export runs only if its SHA-256 is that of the run and among these. Exactly its bytes run, those of `*.py`
files, and no other file. Python itself imports installed packages.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from launcher import paths, plugins
from launcher.config import source
from launcher.config.fields import expanded
from launcher.errors import Problem, UserError, one_line

KEY = "code"
# What this process has loaded, for those that it starts.
_LOADED = "TRAIN_CODE"
_MODULE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_IS_READ_ONLY = ContextVar("is_read_only", default=False)


class Own(NamedTuple):
    """A module of the user's: a file, or the folder of a package, and the SHA-256 of its source."""

    name: str
    path: str
    sha256: str

    @property
    def files(self) -> list[Path]:
        """The files of its source."""
        return source.files(Path(self.path))


@contextmanager
def read_only() -> Iterator[None]:
    """Import no code that a config or a recipe names, for commands that only show runs; in this block."""
    token = _IS_READ_ONLY.set(True)
    try:
        yield
    finally:
        _IS_READ_ONLY.reset(token)


def is_read_only() -> bool:
    """Return whether this is in a block of `read_only`."""
    return _IS_READ_ONLY.get()


def find(name: str) -> Own:
    """Return a module by a path, or by the name of an installed package, without running it.

    Raises UserError if there is none, or another module has its name.
    """
    path = Path(expanded(name)).absolute()
    if not path.exists() and _MODULE.fullmatch(name):
        return _of_package(name)
    if not path.is_file() and not (path / "__init__.py").is_file():
        raise _problem(name, "is neither a file nor a package; set a path such as ./nets.py")
    if _is_taken(path):
        raise _problem(name, f"has the name of an installed package, {path.stem}; rename it")
    if not _MODULE.fullmatch(path.stem) or (path.is_file() and path.suffix != ".py"):
        raise _problem(name, "is not the name of a module; rename it, such as nets.py")
    return Own(path.stem, str(path), source.digest(path, source.read(path)))


def _of_package(name: str) -> Own:
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:
        raise _problem(name, "is neither a file nor an installed package; set a path such as ./nets.py")
    path = Path(spec.origin)
    path = path.parent if path.name == "__init__.py" else path
    return Own(path.stem, str(path), source.digest(path, source.read(path)))


@cache
def installed() -> list[Own]:
    """Return the installed packages that add options by entry points; skip those that fail, with a warning."""
    usable = []
    for name, point in plugins.packages().items():
        try:
            own = _of_package(name)
            _import(own)
            usable.append(own)
        except UserError as error:
            plugins.warn(point, str(error))
    return usable


def available() -> list[Own]:
    """Return what this process may use: the code that the user has named, and that of installed packages."""
    named = loaded()
    return [*named, *(own for own in installed() if own.name not in {one.name for one in named})]


def use_installed(roots: Collection[str]) -> list[Own]:
    """Load the installed packages among the names of modules, as if the user had named them, and return them."""
    return _use([own for own in installed() if own.name in roots])


def _is_taken(path: Path) -> bool:
    """Return whether another module has the name of a file or package."""
    spec = PathFinder.find_spec(path.stem)
    # note: with `python -m` the working directory is a place of installed packages
    others = [] if spec is None or spec.origin is None else [Path(spec.origin).resolve()]
    return path.stem in sys.stdlib_module_names or any(path.resolve() not in (one, one.parent) for one in others)


def use(names: Sequence[str]) -> list[Own]:
    """Load what the user names, and remember it on this machine; with `read_only` only find it.

    Raises UserError if it cannot be loaded.
    """
    named = [find(name) for name in names]
    return named if is_read_only() else _use(named)


def _use(modules: list[Own]) -> list[Own]:
    for own in modules:
        _load(own)
        remembered = _remembered(own.sha256)
        remembered.parent.mkdir(parents=True, exist_ok=True)
        remembered.touch()
    return modules


def use_recorded(recorded: Any, digests: Any, origin: str) -> list[str]:
    """Load the code of a run or an export, and return the paths: what the user named in this command, or where it was.

    Raises UserError if it is not that code, or code that the user has never named here.
    """
    lists = [part if isinstance(part, list) else [] for part in (recorded, digests)]
    places = []
    for place, digest in zip(*(map(str, part) for part in lists), strict=False):
        name = Path(place).stem
        own = next((one for one in available() if one.name == name), None) or _where_it_was(place, digest, origin)
        if own.sha256 != digest:
            message = (
                f"has SHA-256 {own.sha256[:12]}, but {origin} has {digest[:12]}; set the file that it was made with"
            )
            raise _problem(own.path, message)
        _load(own)
        places.append(own.path)
    return places


def loaded() -> list[Own]:
    """Return what this process and those that started it have loaded."""
    return [*_owned(os.environ.get(_LOADED, "[]"))]


@cache
def _owned(text: str) -> tuple[Own, ...]:
    # note: read for every key of a command
    return tuple(Own(*one) for one in json.loads(text))


def modules() -> list[ModuleType]:
    """Return the modules of `available` code.

    Raises UserError if a file has changed, or fails.
    """
    return [_import(own) for own in available()]


def copy(folder: Path) -> None:
    """Copy the loaded files into a folder, for people to read and name; nothing loads them from there by itself."""
    for own in loaded():
        for file in own.files:
            target = folder / file.relative_to(Path(own.path).parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def _where_it_was(place: str, digest: str, origin: str) -> Own:
    if not Path(place).exists():
        raise _problem(place, f"is missing, but {origin} needs it; set code=FILE")
    own = find(place)
    if own.sha256 == digest and not _remembered(digest).exists():
        raise _problem(place, f"is code that was never named on this machine; read it, then type code={own.path}")
    return own


def _remembered(digest: str) -> Path:
    return paths.cache() / KEY / (digest if re.fullmatch("[0-9a-f]{64}", digest) else "none")


def _load(own: Own) -> None:
    others = [one for one in loaded() if one.name == own.name]
    if others and others[0].sha256 != own.sha256:
        raise _problem(own.path, f"has the name of other code in use, {others[0].path}; rename one")
    if not others:
        os.environ[_LOADED] = json.dumps([*loaded(), own])
    _import(own)


def _import(own: Own) -> ModuleType:
    if own.name not in sys.modules:
        _sources(own)
    try:
        return import_module(own.name)
    except UserError:
        raise
    # note: the user's code may raise anything
    except Exception as error:
        reason = f"cannot be imported: {type(error).__name__}: {one_line(str(error))}"
        if isinstance(error, ImportError) and str(error.name).startswith("launcher."):
            reason += "; values and code of an option are one class now, such as ImageTask without ImageTaskConfig"
        raise _problem(own.path, reason) from error


def _sources(own: Own) -> dict[str, bytes]:
    """Return the source that has the SHA-256; raises UserError if the files have another one."""
    sources = source.read(path := Path(own.path))
    if source.digest(path, sources) != own.sha256:
        raise _problem(own.path, "has changed since this command started; start it again")
    return sources


def _problem(value: str, message: str) -> UserError:
    return UserError(Problem(message, KEY, value))


class _Finder(MetaPathFinder):
    """Finds the modules of the user's code by name, also in processes that unpickle their classes."""

    def __init__(self) -> None:
        self._read: dict[Own, dict[str, bytes]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        root = name.partition(".")[0]
        for own in loaded():
            if own.name == root:
                if spec := _installed_spec(own):
                    return spec if name == root else None
                if name == root or own not in self._read:
                    self._read[own] = _sources(own)
                return source.spec(name, self._read[own], Path(own.path))
        return None


def _installed_spec(own: Own) -> ModuleSpec | None:
    """Return where Python finds it, if it is an installed package and not below the working directory."""
    spec = PathFinder.find_spec(own.name, [place for place in sys.path if place not in ("", str(Path.cwd()))])
    place = Path(spec.origin) if spec and spec.origin else None
    return spec if place and own.path in (str(place), str(place.parent)) else None


# note: first, so that no other file of this name runs
sys.meta_path.insert(0, _Finder())
