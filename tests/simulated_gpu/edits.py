"""Faults planted in the product's source while it is imported."""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any


class _Loader(SourceFileLoader):
    """Loads a file with some of its text replaced."""

    def __init__(self, name: str, path: str, edits: Sequence[tuple[str, str]]):
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> Any:
        text = self.get_data(self.path).decode()
        for old, new in self._edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.path} has {text.count(old)} times: {old}")
            text = text.replace(old, new)
        return self.source_to_code(text.encode(), self.path)


class _Finder(MetaPathFinder):
    def __init__(self, edits: Mapping[str, Sequence[tuple[str, str]]]):
        self._edits = edits

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in self._edits else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin, self._edits[name])
        return spec


def install(edits: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Replace text in modules by their names, from now on; each text must occur once."""
    sys.meta_path.insert(0, _Finder(edits))
