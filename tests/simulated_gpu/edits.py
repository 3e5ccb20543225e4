"""Faults planted in the product's source while it is imported."""

import ast
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from textwrap import dedent
from typing import Any


def replaced(source: str, old: str, new: str) -> ast.Module:
    """Return source in which statements, whatever their comments and line breaks, are replaced by others.

    Raises ValueError unless the source has them once.
    """
    tree = ast.parse(source)
    wanted, others = ast.parse(dedent(old)).body, ast.parse(dedent(new)).body
    dumps = [ast.dump(one) for one in wanted]
    places = [
        (body, start)
        for node in ast.walk(tree)
        for _, body in ast.iter_fields(node)
        if isinstance(body, list)
        for start in range(len(body) - len(dumps) + 1)
        if [ast.dump(one) for one in body[start : start + len(dumps)] if isinstance(one, ast.AST)] == dumps
    ]
    if len(places) != 1:
        raise ValueError(f"{len(places)} times in the source: {old}")
    ((body, start),) = places
    body[start : start + len(dumps)] = others
    return ast.fix_missing_locations(tree)


class _Loader(SourceFileLoader):
    """Loads a file with some of its statements replaced."""

    def __init__(self, name: str, path: str, edits: Sequence[tuple[str, str]]):
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> Any:
        text = self.get_data(self.path).decode()
        for old, new in self._edits:
            text = ast.unparse(replaced(text, old, new))
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
    """Replace statements in modules by their names, from now on; each must occur once."""
    sys.meta_path.insert(0, _Finder(edits))
