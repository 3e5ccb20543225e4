"""The source of a module of the user's: its bytes, their SHA-256, and an import that executes exactly these bytes.

Python itself would prefer what it compiled from another source (`__pycache__`), and import compiled files and links.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType


def files(path: Path) -> list[Path]:
    """Return the source files of a module: a file, or the folder of a package."""
    return [path] if path.is_file() else [file for file in sorted(path.rglob("*.py")) if file.is_file()]


def read(path: Path) -> dict[str, bytes]:
    """Return the contents of the source files by their names below the folder of a module."""
    return {file.relative_to(path.parent).as_posix(): file.read_bytes() for file in files(path)}


def digest(path: Path, sources: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of a module at a path with these sources."""
    digests = {name: hashlib.sha256(source).hexdigest() for name, source in sources.items()}
    if path.name in digests:
        return digests[path.name]
    parts = [(name.partition("/")[2], digest) for name, digest in digests.items()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def spec(name: str, sources: Mapping[str, bytes], path: Path) -> ModuleSpec:
    """Return the spec of a module among the sources at a path, or of a folder of modules without `__init__.py`.

    Raises ModuleNotFoundError if it is neither.
    """
    folder = path.parent
    place = name.replace(".", "/")
    for file, inner in ((f"{place}/__init__.py", [str(folder / place)]), (f"{place}.py", None)):
        if file in sources:
            loader = _Loader(name, folder / file, sources[file])
            found = spec_from_file_location(name, folder / file, loader=loader, submodule_search_locations=inner)
            assert found
            return found
    if any(file.startswith(f"{place}/") for file in sources):
        namespace = ModuleSpec(name, None, is_package=True)
        namespace.submodule_search_locations = [str(folder / place)]
        return namespace
    # note: not None, since Python would look for compiled files and links
    message = f"No module named {name!r} among the .py files of {path}; install compiled ones as a package"
    raise ModuleNotFoundError(message, name=name)


class _Loader(SourceFileLoader):
    """Executes a source that was read before, whatever its file or its compiled form in `__pycache__` has now."""

    def __init__(self, name: str, path: Path, source: bytes):
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._source, self.path)
        return code
