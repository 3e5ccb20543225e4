"""Find the options of a group: each is a file with its values and its code, or has a `_target_` of a library."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import itemgetter
from types import ModuleType
from typing import Annotated, Any, Union, get_args, get_type_hints

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, with_config
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from launcher import paths
from launcher.config import code
from launcher.config.fields import STRICT
from launcher.config.targets import KEY, Called, checked, is_named, of_files, of_packaged
from launcher.errors import UserError
from launcher.plugins import check_complete, registered


class Unread(dict[str, Any]):
    """The values of an option whose class is in code of the user's that is not imported, also as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Options:
    """Annotation of a group's field in the run config: it holds the values of one option, the class with their `name`.

    group: in conf/. folder: the package of the options. base: what the classes of their values extend. plugins: the
    entry points by which installed packages add options.
    """

    group: str
    folder: str
    base: type[Any]
    plugins: str | None = None

    def declarations(self) -> dict[str, type[Any]]:
        """Return the class of the values of each option by name, sorted."""
        kinds = [*packaged(self.group, self.folder, self.base), *own_kinds(self.base), *self.of_targets()]
        kinds += registered(self.plugins).values() if self.plugins else ()
        return dict(sorted(((name, kind) for kind in kinds for name in names(kind)), key=itemgetter(0)))

    def declared(self, name: Any) -> type[Any] | None:
        """Return the class of a packaged option by importing its file alone; None if code that is named may have it."""
        if code.modules() or (self.plugins and registered(self.plugins)):
            return None
        found = modules(self.group, self.folder, str(name))
        kinds: list[Any] = [kind for module in found for kind in classes(module, self.base)]
        return next((kind for kind in kinds if name in names(kind)), None)

    def of_targets(self) -> list[type[Any]]:
        """Return those of the user's options that have a target in code that is named, or a library."""
        return [*of_files(self.group, self.target, self.group).values()] if self.target else []

    @property
    def target(self) -> type[Any] | None:
        """The base of the classes of targets; None if the group has none."""
        return target_base(self.folder)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(_one_of(tuple(self.declarations().values())).core_schema)

    def _validated(self, values: Any) -> Any:
        if isinstance(values, self.base):
            return values
        if code.is_read_only() and _is_of_the_user(values, self._declares(values), self.target):
            return Unread(values)
        if isinstance(values, Mapping) and KEY in values and self.target:
            return from_json(_one_of((checked(self.target, self.group, str(values.get("name")), values),)), values)
        kind = self.declared(values.get("name")) if isinstance(values, Mapping) else None
        return from_json(_one_of((kind,) if kind else tuple(self.declarations().values())), values)

    def _declares(self, values: Any) -> bool:
        return isinstance(values, Mapping) and values.get("name") in self.declarations()


@dataclass(frozen=True)
class ByName:
    """Annotation of a field of the run config: it maps names to values with a `_target_`.

    group: of their options in conf/. base: what the classes of the values extend.
    """

    group: str
    base: type[Called]

    def declarations(self) -> dict[str, type[Any]]:
        """Return the class of the values of each option of the user's, by name."""
        return of_files(self.group, self.base, f"{self.group}.{{}}")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "object", "additionalProperties": {"type": "object", "required": [KEY]}}

    def _validated(self, values: Any) -> dict[str, Any]:
        own = values if isinstance(values, Mapping) else {"": values}
        if all(isinstance(value, self.base) for value in own.values()):
            return dict(own)
        return by_name(self.group, self.base, {}, {name: value for name, value in own.items() if value is not None})


def by_name(group: str, base: type[Called], declared: Mapping[str, type[Any]], values: Any) -> dict[str, Any]:
    """Return typed values by sorted name, without those that are None: declared ones, and those with a `_target_`.

    Raises ValidationError, and UserError for a wrong `_target_` or keyword.
    """
    kinds, unread = {**declared}, {}
    if code.is_read_only() and isinstance(values, Mapping):
        unread = {name: Unread(own) for name, own in values.items() if _is_of_the_user(own, name in declared, base)}
        values = {name: own for name, own in values.items() if name not in unread}
    for name, inner in values.items() if isinstance(values, Mapping) else ():
        own = inner if isinstance(inner, Mapping) else {}
        if KEY in own or not declared:
            kinds[name] = checked(base, f"{group}.{name}", name, own)
    typed = {**from_json(_mapping(tuple(kinds.items())), values), **unread}
    return {name: inner for name, inner in sorted(typed.items()) if inner is not None}


def _is_of_the_user(values: Any, is_declared: bool, base: type[Called] | None) -> bool:
    """Return whether values are of an option that is not declared, and whose target is in no library of the base."""
    if not isinstance(values, Mapping):
        return False
    if KEY in values and base:
        return not is_named(str(values[KEY]), base.libraries)
    return not is_declared


@cache
def names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the options whose values are of a class."""
    return get_args(get_type_hints(kind)["name"])


@cache
def modules(group: str, folder: str, *only: str) -> tuple[ModuleType, ...]:
    """Import the files of a package that have the name of an option in conf/, or that name without its number.

    only: the names of the options, of all without one.
    """
    stems = [path.stem for path in (paths.CONF / group).glob("*.yaml") if path.stem in only or not only]
    names = sorted({name for stem in stems for name in (stem, re.sub(r"\d+$", "", stem))})
    return tuple(import_module(name) for stem in names if find_spec(name := f"launcher.{folder}.{stem}"))


def packaged(group: str, folder: str, base: type[Any]) -> list[Any]:
    """Return the classes of the values of the options in conf/: those of their files' code, others by `_target_`."""
    kinds: list[Any] = [kind for module in modules(group, folder) for kind in classes(module, base)]
    target: Any = target_base(folder)
    coded = {name for kind in kinds for name in names(kind)}
    others = {path.stem for path in (paths.CONF / group).glob("*.yaml")} - coded if target else ()
    return kinds + [of_packaged(target.packaged or target, group, name) for name in sorted(others)]


@cache
def target_base(folder: str) -> type[Any] | None:
    """Return the base of the user's targets, the last that a package of options defines; None if it has none."""
    name = f"launcher.{folder}.target"
    return classes(import_module(name), Called)[-1] if find_spec(name) else None


def own_kinds(base: type[Any]) -> list[type[Any]]:
    """Return the classes on a base in the user's code."""
    return [kind for module in code.modules() for kind in classes(module, base)]


def classes(module: ModuleType, base: type[Any]) -> list[type[Any]]:
    """Return the classes that a module defines on a base."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base)]
    # note: a package of the user's imports them from its modules
    return [kind for kind in kinds if f"{kind.__module__}.".startswith(f"{module.__name__}.")]


def code_of(kind: type[Any]) -> Any:
    """Return the code of an option: what its file has under the name of the class of its values, without `Config`.

    Raises UserError if there is none, or it lacks a part.
    """
    name, module = kind.__name__.removesuffix("Config"), sys.modules[kind.__module__]
    if (code := getattr(module, name, None)) is None:
        raise UserError(f"{module.__file__} has no class {name} for {kind.__name__}; write it")
    if isinstance(code, type):
        check_complete(code)
    return code


def from_json(adapter: TypeAdapter[Any], values: Any) -> Any:
    """Return typed values; pydantic adds their errors to those of the whole config.

    Raises ValidationError.
    """
    # note: strict types accept a mapping as a dataclass only in JSON
    return adapter.validate_json(json.dumps(values))


@cache
def _one_of(kinds: tuple[type[Any], ...]) -> TypeAdapter[Any]:
    alternatives: Any = Union[kinds]  # noqa: UP007
    union: Any = Annotated[alternatives, Field(discriminator="name")]
    return TypeAdapter(union if len({*kinds}) > 1 else alternatives)


@cache
def _mapping(kinds: tuple[tuple[str, type[Any]], ...]) -> TypeAdapter[Any]:
    typed: Any = TypedDict("Values", {name: kind | None for name, kind in kinds}, total=False)  # type: ignore[misc]
    return TypeAdapter(with_config(STRICT)(typed))
