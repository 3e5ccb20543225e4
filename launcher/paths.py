"""Where the project's own files lie, and where a user's do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# note: a wheel carries conf/ and recipes/ inside the package, a checkout has them beside it
_ROOT = _PACKAGE / "assets" if (_PACKAGE / "assets").is_dir() else _PACKAGE.parent

CONF = _ROOT / "conf"
PACKAGED_RECIPES = _ROOT / "recipes"
ABLATIONS = "ablations"


def cache() -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "train-launcher"


def recipe_folders(config_dirs: Iterable[Path] = ()) -> list[Path]:
    """Folders with recipes: those of `--config-dir`, `recipes/` in the working directory, the packaged one."""
    return _folders([*config_dirs, Path.cwd() / "recipes", PACKAGED_RECIPES])


def search_path(config_dirs: Iterable[Path] = ()) -> list[Path]:
    """Folders in which Hydra finds recipes and options; the first that has a file wins."""
    here = Path.cwd()
    recipes = [folder for root in (here / "recipes", PACKAGED_RECIPES) for folder in (root, root / ABLATIONS)]
    return _folders([*config_dirs, *recipes[:2], here / "conf", *recipes[2:], CONF])


def _folders(candidates: Iterable[Path]) -> list[Path]:
    return [folder for folder in dict.fromkeys(path.resolve() for path in candidates) if folder.is_dir()]
