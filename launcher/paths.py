"""The folders of the project's own files and of the user's."""

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path, PurePosixPath, PureWindowsPath

from launcher.errors import UserError
from launcher.plugins import option_folders

PACKAGE = Path(__file__).resolve().parent
# note: conf/ and recipes/ are inside the package in a wheel, and beside it in a checkout
_ROOT = PACKAGE / "assets" if (PACKAGE / "assets").is_dir() else PACKAGE.parent

# The folder of a checkout, or None for an installed wheel.
CHECKOUT = _ROOT if _ROOT != PACKAGE / "assets" and (_ROOT / "pyproject.toml").is_file() else None
CONF = _ROOT / "conf"
AGENTS = _ROOT / "AGENTS.md"
PACKAGED_RECIPES = _ROOT / "recipes"
ABLATIONS = "ablations"
_RESOLVED = {CONF, PACKAGED_RECIPES, PACKAGED_RECIPES / ABLATIONS}
_CONFIG_DIRS: ContextVar[tuple[Path, ...]] = ContextVar("config_dirs", default=())


def home() -> Path:
    """Return the user's home folder.

    Raises UserError if there is none, as for a user of a container without a name.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise UserError("this user has no home folder; set HOME to a folder that can be written") from None


def ensure_home() -> str | None:
    """Set HOME to a folder for temporary files if the user has no home folder, and return a note; None with one.

    Other packages would create a folder named ~. Without such a folder HOME stays unset, and `home` raises.
    """
    try:
        Path.home()
        return None
    except RuntimeError:
        folder = Path(tempfile.gettempdir(), f"train-home-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    if not is_own(folder):
        return None
    os.environ["HOME"] = str(folder)
    return f"this user has no home folder, so HOME={folder}; set another to keep caches"


def is_own(folder: Path) -> bool:
    """Return whether a folder is this user's, no link, and cannot be changed by others, who may have created it."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def user_cache() -> Path:
    """Return the folder below which programs cache files; raises UserError without a home folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")


def cache() -> Path:
    """Return the folder of files that can be recomputed; raises UserError without a home folder."""
    return user_cache() / "train-launcher"


def local_path(folder: Path, name: str) -> Path:
    """Return the path below a folder of a name from outside, such as a key of a bucket.

    Raises ValueError if the name is empty, absolute, has a drive, a NUL or `..`, also between backslashes, or if a link
    below the folder is on the way.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or "\0" in name or ".." in parts or parts[0].startswith("/") or PureWindowsPath(name).drive:
        raise ValueError(f"the name {name!r} leads out of its folder")
    path = folder
    for part in PurePosixPath(name).parts:
        path /= part
        with suppress(OSError):  # note: such as of a name that is too long
            if path.is_symlink():
                raise ValueError(f"{path} is a link")
    return path


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
    return _folders([*_CONFIG_DIRS.get(), *recipes[:2], here / "conf", *option_folders(), *recipes[2:], CONF])


def _folders(candidates: Iterable[Path]) -> list[Path]:
    resolved = dict.fromkeys(path if path in _RESOLVED else path.resolve() for path in candidates)
    return [folder for folder in resolved if folder.is_dir()]
