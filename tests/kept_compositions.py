"""Keep what Hydra composed over processes and runs; the product's own check of files and stamps decides what holds."""

import hashlib
import pickle
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from launcher import atomic
from launcher.config import hydra_source
from launcher.config.hydra_source import Lookups

_ROOT = Path(__file__).parents[1]
_ALL = _ROOT / ".pytest_cache" / "compositions"


class _Kept(dict[str, tuple[bytes, Lookups]]):
    """The compositions of this process, and in files those of others by the same code."""

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        file = _file(str(key))
        with suppress(OSError, pickle.UnpicklingError, EOFError):
            super().__setitem__(str(key), pickle.loads(file.read_bytes()))
            return True
        return False

    def __setitem__(self, key: str, value: tuple[bytes, Lookups]) -> None:
        super().__setitem__(key, value)
        if tempfile.gettempdir() not in key:
            # note: a test may make all writes fail
            with suppress(OSError):
                _make_folder()
                with atomic.writing(_file(key)) as temporary:
                    temporary.write_bytes(pickle.dumps(value))


def keep() -> None:
    hydra_source._KEPT = _Kept()


@lru_cache
def _make_folder() -> None:
    """Make the folder of this code, and remove those of others."""
    _folder().mkdir(parents=True, exist_ok=True)
    for other in _ALL.iterdir():
        if other != _folder():
            shutil.rmtree(other, ignore_errors=True)


def _file(key: str) -> Path:
    return _folder() / hashlib.sha256(key.encode()).hexdigest()


@lru_cache
def _folder() -> Path:
    """Return the folder of what is composed by this code."""
    contents = [path.read_bytes() for path in sorted((_ROOT / "launcher" / "config").rglob("*.py"))]
    versions = [sys.version, version("hydra-core"), version("omegaconf")]
    return _ALL / hashlib.sha256(b"".join([*contents, *map(str.encode, versions)])).hexdigest()
