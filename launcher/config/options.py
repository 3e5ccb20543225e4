"""Find the options of a group: each is a file with its values and its code, or has a `_target_` of a library."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, Any, Union

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, with_config
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from launcher import paths
from launcher.config import code
from launcher.config.fields import STRICT
from launcher.config.targets import KEY, Called, checked, is_named, of_files, of_packaged
from launcher.plugins import registered


class Unread(dict[str, Any]):
    """The values of an option whose class is in code of the user's that is not imported, also as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Group:
    """Annotation of a field of the run config: it holds the values of one option, the class with their `name`.

    name: in conf/. base: what the classes of their values extend. folder: the package of the options; None if all are
    the user's, by `_target_`. many: the mapping of the field, if it holds several options by name, without those that
    are off. plugins: the entry points by which installed packages add options.
    """

    name: str
    base: type[Any]
    folder: str | None = None
    many: type[dict[str, Any]] | None = None
    plugins: str | None = None

    @property
    def target(self) -> type[Called] | None:
        """The base of the values of options with a `_target_`; None if they take none."""
        return target_base(self.folder) if self.folder else self.base

    def declarations(self, *only: str) -> dict[str, type[Any]]:
        """Return the class of the values of each option by name, sorted; only: of the packaged ones these, if given."""
        kinds = self._packaged(only)
        added = own_kinds(self.base) if self.folder else []
        added += registered(self.plugins).values() if self.plugins else ()
        kinds |= {name: kind for kind in added for name in kind.option_names()}
        if target := self.target:
            kinds |= of_files(self.name, target, self._key("{}"))
        return dict(sorted(kinds.items()))

    def _packaged(self, only: Collection[str]) -> dict[str, type[Any]]:
        """Return the class of each option in conf/: that of its file's code, others by `_target_`."""
        if self.folder is None:
            return {}
        modules = code_modules(self.name, self.folder, only)
        kinds = {name: kind for one in modules for kind in classes(one, self.base) for name in kind.option_names()}
        target: Any = self.target
        others = _stems(self.name, only) - kinds.keys() if target else ()
        return kinds | {name: of_packaged(target.packaged or target, self.name, name) for name in others}

    def _key(self, option: str) -> str:
        return f"{self.name}.{option}" if self.many else self.name

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        validated = self._validated if self.many is None else self._by_name
        return core_schema.no_info_plain_validator_function(validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        if self.folder is None:
            return {"type": "object", "additionalProperties": {"type": "object", "required": [KEY]}}
        kinds = self.declarations()
        if self.many is None:
            return handler(_one_of(tuple(kinds.values())).core_schema)
        typed = {name: handler(TypeAdapter(kind).core_schema) for name, kind in kinds.items()}
        return {"type": "object", "properties": typed, "additionalProperties": False}

    def _chosen(self, names: Collection[str]) -> dict[str, type[Any]]:
        """Return the classes of the options of these names, importing their files alone; of all if one is missing."""
        kinds = self.declarations(*names) if names else {}
        # note: the error of another name suggests the nearest one
        return kinds if kinds.keys() >= set(names) else self.declarations()

    def _validated(self, values: Any) -> Any:
        """Return the typed values of one option; raises as `from_json`."""
        if isinstance(values, self.base):
            return values
        name = str(values.get("name")) if isinstance(values, Mapping) else ""
        target = self.target if isinstance(values, Mapping) and KEY in values else None
        kinds = {} if target else self._chosen([name])
        if code.is_read_only() and self._is_of_the_user(values, name in kinds):
            return Unread(values)
        if target:
            return from_json(_one_of((checked(target, self.name, name, values),)), values)
        return from_json(_one_of((kinds[name],) if name in kinds else tuple(kinds.values())), values)

    def _by_name(self, values: Any) -> dict[str, Any]:
        """Return typed values by sorted name, without those that are None.

        Raises ValidationError, and UserError for a wrong `_target_` or keyword.
        """
        assert self.many is not None
        named = values if isinstance(values, Mapping) else {"": values}
        if named and all(isinstance(one, self.base) for one in named.values()):
            return self.many(named)
        kinds = self._chosen(named.keys()) if self.folder else {}
        unread = {
            name: Unread(own)
            for name, own in named.items()
            if code.is_read_only() and self._is_of_the_user(own, name in kinds)
        }
        left = {
            name: own for name, own in named.items() if name not in unread and not (own is None and self.folder is None)
        }
        for name, inner in left.items():
            own = inner if isinstance(inner, Mapping) else {}
            if self.target and (KEY in own or self.folder is None):
                kinds[name] = checked(self.target, self._key(name), name, own)
        typed = from_json(_mapping(tuple(kinds.items())), left if isinstance(values, Mapping) else values) | unread
        return self.many({name: inner for name, inner in sorted(typed.items()) if inner is not None})

    def _is_of_the_user(self, values: Any, is_declared: bool) -> bool:
        """Return whether values are of an option that is not declared, and whose target is in no library."""
        if not isinstance(values, Mapping):
            return False
        if KEY in values and self.target:
            return not is_named(str(values[KEY]), self.target.libraries)
        return not is_declared


def _stems(group: str, only: Collection[str]) -> set[str]:
    return {path.stem for path in (paths.CONF / group).glob("*.yaml") if path.stem in only or not only}


def code_modules(group: str, folder: str, only: Collection[str] = ()) -> list[ModuleType]:
    """Import the files of a package that have the name of an option in conf/, or that name without its number.

    only: the names of the options, of all without one.
    """
    names = sorted({name for stem in _stems(group, only) for name in (stem, re.sub(r"\d+$", "", stem))})
    return [import_module(name) for stem in names if find_spec(name := f"launcher.{folder}.{stem}")]


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
