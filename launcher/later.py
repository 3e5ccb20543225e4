"""Import torch at its first use: an option's file has its code beside its values, which every command reads.

`from launcher.later import torch` gives torch's own module, whose source runs when its first attribute is read, and
which is in `sys.modules` from then on. `importlib.util.LazyLoader` would enter it at once, and matplotlib, which looks
for it there, would run it.
"""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch as torch
    import torch.nn.functional as F
    from torch import nn as nn

__all__ = ["F", "nn", "no_grad", "torch"]

P = ParamSpec("P")
R = TypeVar("R")


class _Later(ModuleType):
    """A module whose source has not run."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


class _Into(Loader):
    """Runs the source of a module in one that exists already."""

    def __init__(self, module: ModuleType, loader: Loader):
        self._module, self._loader = module, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._module.__class__ = ModuleType
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of `waiting` as usual, and loads them into those that are there."""

    def __init__(self) -> None:
        self.waiting: dict[str, ModuleType] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in self.waiting else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Into(self.waiting.pop(name), spec.loader)
        return spec


def _later(name: str) -> Any:
    if name not in sys.modules:
        return _finder.waiting.setdefault(name, _Later(name))
    return sys.modules[name]


def no_grad(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function as `torch.no_grad()` does, which would run torch's source at the definition."""

    @wraps(function)
    def without_gradients(*arguments: P.args, **keywords: P.kwargs) -> R:
        with torch.no_grad():
            return function(*arguments, **keywords)

    return without_gradients


_finder = _Finder()
if not TYPE_CHECKING:
    torch, nn, F = map(_later, ("torch", "torch.nn", "torch.nn.functional"))
    sys.meta_path.insert(0, _finder)
