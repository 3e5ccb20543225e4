"""The folders of the project's own files and of the user's."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# note: conf/ and recipes/ are inside the package in a wheel, and beside it in a checkout
_ROOT = _PACKAGE / "assets" if (_PACKAGE / "assets").is_dir() else _PACKAGE.parent

CONF = _ROOT / "conf"
PACKAGED_RECIPES = _ROOT / "recipes"
ABLATIONS = "ablations"
_CONFIG_DIRS: ContextVar[tuple[Path, ...]] = ContextVar("config_dirs", default=())


def cache() -> Path:
    """Return the folder of files that can be recomputed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "train-launcher"


@contextmanager
def searching(config_dirs: Iterable[Path]) -> Iterator[None]:
    """Search the folders of `--config-dir` before all others."""
    token = _CONFIG_DIRS.set((*config_dirs,))
    try:
        yield
    finally:
        _CONFIG_DIRS.reset(token)


def recipe_folders() -> list[Path]:
    """Return the recipe folders: those of `--config-dir`, `recipes/` in the working directory, the packaged one."""
    return _folders([*_CONFIG_DIRS.get(), Path.cwd() / "recipes", PACKAGED_RECIPES])


def search_path() -> list[Path]:
    """Return the folders that Hydra searches for recipes and options; the first with a file wins."""
    here = Path.cwd()
    recipes = [folder for root in (here / "recipes", PACKAGED_RECIPES) for folder in (root, root / ABLATIONS)]
    return _folders([*_CONFIG_DIRS.get(), *recipes[:2], here / "conf", *recipes[2:], CONF])


def _folders(candidates: Iterable[Path]) -> list[Path]:
    return [folder for folder in dict.fromkeys(path.resolve() for path in candidates) if folder.is_dir()]
