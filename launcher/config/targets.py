"""Options by Hydra's `_target_`: a class or function of the user's code or of a library, with its keywords."""

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_type_hints

from pydantic.dataclasses import dataclass

from launcher import paths
from launcher.config import code
from launcher.config.fields import STRICT
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, UserError

KEY = "_target_"
# note: not all of torch, whose hub runs code of others
LIBRARIES = ("torch.nn.", "torch.optim.", "torchvision.models.", "torchvision.transforms.", "timm.", "torchmetrics.")
Setting = bool | int | float | str | list[int] | None
_PLAIN = (bool, int, float, str, bool | None, int | None, float | None, str | None, list[int], list[float])
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def of_files(group: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the target of each option of the user's that has one."""
    folders = [folder for folder in reversed(paths.search_path()) if folder != paths.CONF]
    files = {path.stem: path for folder in folders for path in (folder / group).glob("*.yaml")}
    for name, path in sorted(files.items()):
        if isinstance(target := read_mapping(path).get(KEY), str):
            yield name, target


def is_named(target: str) -> bool:
    """Return whether a target is in code that was named, or in a library that may be used."""
    roots = [f"{own.name}." for own in code.loaded()]
    return target.startswith((*LIBRARIES, *roots))


def target_of(target: str, key: str) -> Callable[..., Any]:
    """Return a class or function by its dotted name.

    Raises UserError if it is not in named code or a library that may be used, or does not exist.
    """
    names = ", ".join(name.removesuffix(".") for name in LIBRARIES)
    if not is_named(target):
        message = f"is neither in {names} nor in code that is named; type code=FILE, such as code=nets.py"
        raise UserError(Problem(message, key, target))
    code.modules()
    parts = target.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part, None)
        # note: a module has others as attributes, such as nets.os.system
        if callable(found) and is_named(f"{found.__module__}."):
            return found  # type: ignore[no-any-return]
        break
    raise UserError(Problem("is not a class or function there; correct the name", key, target))


@cache
def typed_target(base: type[Any], group: str, name: str, target: str, sha256: str) -> type[Any]:
    """Return the class of the values of a target: the keywords of its signature with their types and defaults.

    Keywords that `base` fills itself are in its `filled`. sha256: of the code that is loaded, for the cache.

    Raises UserError as `target_of`.
    """
    called = target_of(target, f"{group}.{KEY}")
    hints = get_type_hints(called.__init__ if inspect.isclass(called) else called)
    defaults: dict[str, Any] = base.defaults(name)
    inherited = get_type_hints(base, include_extras=True)
    own: dict[str, Any] = {one: inherited[one] for one in defaults} | {KEY: Literal[target], "name": Literal[name]}
    for parameter in inspect.signature(called).parameters.values():
        if parameter.kind in _NAMED and parameter.name not in base.filled:
            hint = hints.get(parameter.name)
            own[parameter.name] = hint if hint in _PLAIN else Setting
            if parameter.default is not inspect.Parameter.empty:
                defaults[parameter.name] = parameter.default
    kind = type(base.__name__, (base,), {"__annotations__": own, "__module__": base.__module__, **defaults})
    return dataclass(frozen=True, config=STRICT, kw_only=True)(kind)
