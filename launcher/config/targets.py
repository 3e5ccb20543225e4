"""Options by Hydra's `_target_`: a class or function of the user's code or of a library, with its keywords."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, fields
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

from pydantic.dataclasses import dataclass

from launcher import paths
from launcher.config import code
from launcher.config.fields import STRICT
from launcher.config.similar import nearest
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, UserError, is_of_the_machine, one_line

KEY = "_target_"
DOTTED_NAME = "and the dotted name of a class or function, such as nets.Mine"
Setting = bool | int | float | str | list[int] | list[float] | list[str] | None
_PLAIN = (bool, int, float, str, bool | None, int | None, float | None, str | None, list[int], list[float], list[str])
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Called:
    """Base of the values of what a `_target_` calls: its keywords, beside the values of its group.

    libraries: the packages that it may be in besides code that is named: no more than the group needs, because a config
    may come from elsewhere, and some functions of libraries load files that run code.
    filled: the keywords that the program fills. leading: the number of arguments that it passes to a function. taken:
    the values of the group that have the defaults of the keywords with their names. passed: all other keywords.
    stated: the types of keywords in the files of packaged options, where that of the value is not enough. packaged: the
    base of these options; None: this one.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    filled: ClassVar[tuple[str, ...]] = ()
    leading: ClassVar[int] = 0
    taken: ClassVar[tuple[str, ...]] = ()
    passed: ClassVar[tuple[str, ...]] = ()
    stated: ClassVar[Mapping[str, Any]] = {}
    packaged: ClassVar[Any] = None
    # the function that makes its class, and its arguments
    made_by: ClassVar[tuple[Any, ...]] = ()

    @classmethod
    def unset(cls, name: str) -> dict[str, Any]:
        """Return values that an option need not have."""
        return {}

    @property
    def is_packaged(self) -> bool:
        """Whether the option is of conf/, not the user's."""
        return hasattr(type(self), KEY)

    @property
    def target(self) -> str:
        """The dotted name of the class or function."""
        return str(getattr(self, KEY))

    @property
    def called(self) -> Callable[..., Any]:
        """The class or function; raises UserError as `target_of`."""
        return target_of(self.target, self._key, self.libraries)

    def keywords(self) -> dict[str, Any]:
        """Return what the option passes to the target."""
        return {name: getattr(self, name) for name in self.passed}

    def built(self, **filled: Any) -> Any:
        """Return an instance of the class, or the function with its keywords.

        Raises UserError with what is wrong if it cannot be called.
        """
        called = self.called
        if self.leading and not inspect.isclass(called):
            return partial(called, **self.keywords())
        shown = {name: value for name, value in filled.items() if isinstance(value, int | float)}
        with self.naming(f"cannot be called with {shown | self.keywords()}"):
            return called(**filled, **self.keywords())

    @contextmanager
    def naming(self, event: str) -> Iterator[None]:
        """Turn an error of the target into one line; `event` is what has failed."""
        try:
            yield
        except UserError:
            raise
        # note: the user's code may raise anything
        except Exception as error:
            if is_of_the_machine(error):
                raise
            raise UserError(Problem(f"{event}: {reason(error)}; correct one", self._key, self.target)) from error

    @property
    def _key(self) -> str:
        return f"{self.made_by[2]}.{KEY}"

    def __reduce__(self) -> Any:
        own = {one.name for one in fields(self)}  # type: ignore[arg-type]
        state = {name: value for name, value in vars(self).items() if name not in own}
        return _again, (self.made_by, {name: getattr(self, name) for name in own}), state


@dataclass(frozen=True, config=STRICT)
class Callback(Called):
    """Values of a class of the user's that is called at events of the run (`launcher.training.callbacks`)."""


def reason(error: Exception) -> str:
    """Return type, message and place of an error of the user's code."""
    frames, files = (
        traceback.extract_tb(error.__traceback__),
        [str(file) for own in code.available() for file in own.files],
    )
    place = next((frame for frame in reversed(frames) if frame.filename in files), frames[-1])
    return f"{type(error).__name__}: {one_line(str(error))} ({Path(place.filename).name}:{place.lineno})"


def _again(made_by: tuple[Any, ...], values: dict[str, Any]) -> Any:
    """Return values in another process, where its class does not exist."""
    make, *arguments = made_by
    return make(*arguments)(**values)


def of_files(group: str, base: type[Called], key: str) -> dict[str, type[Any]]:
    """Return the class of the values of each option of the user's that has a target that may be used, by name.

    key: of an option, where {} is its name.
    """
    folders = [folder for folder in reversed(paths.search_path()) if folder != paths.CONF]
    files = {path.stem: path for folder in folders for path in (folder / group).glob("*.yaml")}
    named = {name: read_mapping(path).get(KEY) for name, path in sorted(files.items())}
    return {
        name: typed_target(base, key.format(name), name, target)
        for name, target in named.items()
        if isinstance(target, str) and is_named(target, base.libraries)
    }


def checked(base: type[Called], key: str, name: str, values: Mapping[str, Any]) -> type[Any]:
    """Return the class of values with a `_target_`.

    Raises UserError if that is missing or wrong, or has no such keyword.
    """
    target = values.get(KEY)
    if not isinstance(target, str):
        message = "is missing; set the dotted name of a class or function, such as nets.Mine"
        raise UserError(Problem(message, f"{key}.{KEY}", target))
    kind = typed_target(base, key, name, target)
    known = {one.name for one in fields(kind)} - {KEY, "name"}
    if unknown := [one for one in values if one not in {*known, KEY, "name"}]:
        similar = {one: nearest(one, known) for one in unknown}
        every = f"set one of {', '.join(sorted(known))}"
        hints = {one: f"did you mean {key}.{like}?" if like else every for one, like in similar.items()}
        raise UserError(*(Problem(f"no such key; {hints[one]}", f"{key}.{one}", values[one]) for one in unknown))
    return kind


def is_named(target: str, libraries: Sequence[str]) -> bool:
    """Return whether a target is in code that was named, or in a package with one of the libraries."""
    packages = {name.partition(".")[0] for name in libraries} | {own.name for own in code.available()}
    return target.partition(".")[0] in packages


def target_of(target: str, key: str, libraries: tuple[str, ...]) -> Callable[..., Any]:
    """Return a class or function by its dotted name.

    Raises UserError if it is not in named code or one of the libraries, or does not exist.
    """
    return _target_of(target, key, libraries, _digests())


@cache
def _target_of(target: str, key: str, libraries: tuple[str, ...], digests: str) -> Callable[..., Any]:
    elsewhere = f"is neither in {', '.join(libraries)} nor in" if libraries else "is not in"
    elsewhere += " code that is named; type code=FILE, such as code=nets.py"
    if not is_named(target, libraries):
        raise UserError(Problem(elsewhere, key, target))
    code.modules()
    parts = target.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part, None)
        if callable(found):
            # note: a module has others as attributes, such as nets.os.system
            named = [*libraries, *(own.name for own in code.available())]
            if any(f"{found.__module__}.".startswith(f"{name}.") for name in named):
                return found  # type: ignore[no-any-return]
            raise UserError(Problem(elsewhere, key, target))
        break
    raise UserError(Problem("is not a class or function there; correct the name", key, target))


def _digests() -> str:
    return " ".join(own.sha256 for own in code.available())


def typed_target(base: Any, key: str, name: str, target: str) -> type[Any]:
    """Return the class of the values of a target: the keywords of its signature with their types and defaults.

    key: of the option, for errors. A default that no file can hold is left to the target.

    Raises UserError as `target_of`.
    """
    return _typed_target(base, key, name, target, _digests())


@cache
def _typed_target(base: Any, key: str, name: str, target: str, digests: str) -> type[Any]:
    called = target_of(target, f"{key}.{KEY}", base.libraries)
    hints: dict[str, Any] = {}
    with suppress(Exception):  # note: such as names that are imported for type checkers only
        hints = get_type_hints(called.__init__ if inspect.isclass(called) else called)
    inherited = get_type_hints(base, include_extras=True)
    of_group = {one.name for one in fields(base)}
    defaults: dict[str, Any] = base.unset(name)
    own: dict[str, Any] = {KEY: Literal[target]} | ({"name": Literal[name]} if "name" in of_group else {})
    passed = []
    for parameter in _parameters(called, base):
        default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        has_default = default is not inspect.Parameter.empty
        if has_default and not _is_setting(default):
            continue
        if has_default and (parameter.name not in of_group or parameter.name in base.taken):
            is_list = isinstance(default, list)
            defaults[parameter.name] = field(default_factory=default.copy) if is_list else default
        if parameter.name not in of_group:
            hint = hints.get(parameter.name)
            own[parameter.name] = hint if hint in _PLAIN else Setting
            passed.append(parameter.name)
    own |= {one: inherited[one] for one in defaults if one in of_group}
    made_by = (typed_target, base, key, name, target)
    space = defaults if "name" in of_group else {**defaults, "name": name}
    return _class(base, own, {"passed": (*passed,), "made_by": made_by, **space})


@cache
def of_packaged(base: Any, group: str, name: str) -> type[Any]:
    """Return the class of the values of a packaged option with a target: those in its file, all without a default.

    The target is the class's, not among the values, and is not imported.
    """
    values = read_mapping(paths.CONF / group / f"{name}.yaml")
    of_group = {one.name for one in fields(base)}
    passed = [key for key in values if key not in {KEY, *of_group}]
    own = {key: base.stated.get(f"{name}.{key}", base.stated.get(key, type(values[key]))) for key in passed}
    made_by = (of_packaged, base, group, name)
    return _class(base, {"name": Literal[name], **own}, {KEY: values[KEY], "passed": (*passed,), "made_by": made_by})


def _class(base: Any, own: dict[str, Any], space: dict[str, Any]) -> type[Any]:
    space |= {"__annotations__": own, "__module__": base.__module__, "__qualname__": base.__name__}
    frozen = base.__dataclass_params__.frozen
    return dataclass(frozen=frozen, config=STRICT, kw_only=True)(type(base)(base.__name__, (base,), space))


def _parameters(called: Callable[..., Any], base: type[Called]) -> Iterator[inspect.Parameter]:
    """Yield the keywords of a target that an option may set."""
    parameters = [*inspect.signature(called).parameters.values()]
    leading = 0 if inspect.isclass(called) else base.leading
    for parameter in parameters[leading:]:
        if parameter.kind in _NAMED and parameter.name not in base.filled:
            yield parameter


def _is_setting(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)
