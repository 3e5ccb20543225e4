"""What extends the launcher: entry points of installed packages (verbs, loggers, code), and complete classes."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal, Self, get_origin, get_type_hints

from launcher.errors import UserError, one_line

VERBS = "train.verbs"
# By logger: the dataclass of its values.
LOGGERS = "train.loggers"
# The importable packages whose classes and `conf/` are options, as those of the user's code.
CODE = "train.code"
_SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    VERBS: (
        "a mapping of verb to (module, description)",
        lambda verbs: all(
            isinstance(text, str) for verb, (module, about) in verbs.items() for text in (verb, module, about)
        ),
    ),
    LOGGERS: (
        "a dataclass with a name: Literal[...], check() and sink(folder, config)",
        lambda kind: (
            get_origin(get_type_hints(kind)["name"]) is Literal and callable(kind.check) and callable(kind.sink)
        ),
    ),
}


class Complete:
    """Base of classes that extend the launcher: an incomplete one is an error of the user."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Raise UserError with what the class lacks."""
        check_complete(cls)
        return super().__new__(cls)


def check_complete(kind: type) -> None:
    """Check that a class has all methods and values of a class that its bases declare.

    Raises UserError with what it lacks.
    """
    values = {name: hint for base in kind.__mro__ for name, hint in get_annotations(base).items()}
    lacking = {name for name, hint in values.items() if str(hint).startswith("ClassVar") and not hasattr(kind, name)}
    if lacking := lacking | getattr(kind, "__abstractmethods__", set()):
        named = " and no ".join(sorted(lacking))
        raise UserError(f"{kind.__name__} of {kind.__module__} has no {named}; write what it lacks")


# note: those of all groups take no longer than one, and a command uses several
points = cache(entry_points)


@cache
def registered(group: str) -> dict[str, Any]:
    """Load the entry points of a group by name; skip broken ones, and those of a wrong shape, with a warning."""
    expected, fits = _SHAPES[group]
    loaded = {}
    for point in sorted(points().select(group=group), key=lambda one: one.name):
        try:
            found = point.load()
        # note: importing another package's code may raise anything
        except Exception as error:
            warn(point, str(error) or type(error).__name__)
            continue
        with suppress(Exception):
            if fits(found):
                loaded[point.name] = found
                continue
        warn(point, f"must be {expected}")
    return loaded


@cache
def packages() -> dict[str, EntryPoint]:
    """Return the packages whose code adds options, by sorted name; skip missing ones with a warning."""
    by_name = {point.value: point for point in points().select(group=CODE)}
    installed = {}
    for name, point in sorted(by_name.items()):
        if PathFinder.find_spec(name) is None:
            warn(point, "is no package or module of that name")
        else:
            installed[name] = point
    return installed


def option_folders() -> list[Path]:
    """Return the folders `conf/` in the packages that add options."""
    specs = (PathFinder.find_spec(name) for name in packages())
    places = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return [Path(place) / "conf" for place in places]


def warn(point: EntryPoint, reason: str) -> None:
    """Warn that an entry point is skipped."""
    if "RANK" in os.environ:
        return  # note: the launcher process has printed it
    package = f" of the package {point.dist.name}" if point.dist else ""
    print(f"warning: skipped {point.name} = {point.value}{package}: {one_line(reason)}", file=sys.stderr)
