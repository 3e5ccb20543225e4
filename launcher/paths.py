"""Where the project's own files lie, and where a user's do."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# note: a wheel carries conf/ and recipes/ inside the package, a checkout has them beside it
_ROOT = _PACKAGE / "assets" if (_PACKAGE / "assets").is_dir() else _PACKAGE.parent

CONF = _ROOT / "conf"
PACKAGED_RECIPES = _ROOT / "recipes"


def cache() -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "train-launcher"


def recipe_folders() -> list[Path]:
    """Folders searched for recipes: `recipes/` in the working directory first, then the packaged ones."""
    local = Path.cwd() / "recipes"
    folders = [local, PACKAGED_RECIPES] if local.resolve() != PACKAGED_RECIPES else [PACKAGED_RECIPES]
    return [folder for folder in folders if folder.is_dir()]
