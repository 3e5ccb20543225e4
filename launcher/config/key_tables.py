"""Tables of all keys: accepted values from the schema, defaults and descriptions from conf/."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from launcher.config.algorithms import ALGORITHMS
from launcher.config.fields import AnyPath, Duration, Within
from launcher.config.json_schema import MANY, Option, inside, packaged, read, remark
from launcher.config.keys import hints, options
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.targets import KEY as TARGET
from launcher.config.targets import Called
from launcher.paths import CONF

SUBMIT = "submit."
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null", Any: "any value"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Row:
    """A dotted key, the values that it takes, its default as YAML, and its description."""

    key: str
    takes: str
    default: str
    description: str


@dataclass(frozen=True)
class Table:
    """Keys with a common section, such as `image`, `model` or `algorithms.mixup`; empty for those of the run.

    options: the words that choose the options of a group that have these keys, and their descriptions.
    """

    section: str
    rows: list[Row]
    options: dict[str, str]


def of_run() -> Iterator[Table]:
    """Yield the tables of a run's config: its own keys, sections, groups, and algorithms."""
    train = read(CONF / "train.yaml")
    types = _fields(RunConfig)
    yield Table("", [*_rows("", RunConfig, [train])], {})
    for name in [name for name, hint in types.items() if options(hint) and name not in (*GROUPS, "algorithms")]:
        if isinstance(types[name], type):
            yield Table(name, [*_rows(f"{name}.", types[name], [inside(train, name)])], {})
    for group in GROUPS:
        files = packaged(group)
        kinds = [kind for kind in options(types[group]) if hasattr(kind, TARGET) or not issubclass(kind, Called)]
        for kind in kinds:
            same = [option for option in files if len(kinds) == 1 or option.name in _own_names(kind)]
            words = {f"{group}={option.name}": option.description for option in same}
            yield Table(group, [*_rows(f"{group}.", kind, same)], words)
    for name, kind in ALGORITHMS.declarations().items():
        for path in (CONF / "algorithms").glob(f"{name}.yaml"):
            option = read(path)
            rows = [*_rows(f"algorithms.{name}.", kind, [option])] if option.values else []
            yield Table(f"algorithms.{name}", rows, {f"algorithms.{name}=on": option.description})


def of_job(kind: type) -> Table:
    """Return the table of the values of `train submit` for a cluster."""
    name = kind.__name__.lower()
    return Table(
        SUBMIT.rstrip("."), [*_rows(SUBMIT, kind, [read(CONF / "submit" / f"{name}.yaml")])], {f"--{name}": ""}
    )


def _own_names(kind: type) -> list[str]:
    """Return the options of a type: the values that its `name` can have."""
    return in_words(_own_types(kind)["name"]).split(" or ")


def _rows(prefix: str, schema: type, files: Sequence[Option]) -> Iterator[Row]:
    """Yield the keys of a schema, those of nested mappings last."""
    for name, hint in _own_types(schema).items():
        if name != "name" or prefix == SUBMIT:
            yield Row(f"{prefix}{name}", in_words(hint), default(name, files), remark(name, files))
    for name, hint in _fields(schema).items():
        inner = options(hint)
        if inner and schema is not RunConfig:
            # note: the values of a logger among several are those of its own option
            same = CONF / prefix.partition(".")[0] / f"{name}.yaml"
            below = [read(same)] if same.is_file() else [inside(option, name) for option in files]
            yield from _rows(f"{prefix}{name}.", inner[0], below)


def _fields(schema: type) -> dict[str, Any]:
    """Return the type of each field, with its bounds, by name."""
    return {field.name: hints(schema)[field.name] for field in fields(schema)}


def _own_types(schema: type) -> dict[str, Any]:
    """Return the type of each field that is not a group or mapping, with its bounds, by name."""
    return {name: hint for name, hint in _fields(schema).items() if not options(hint)}


def in_words(hint: Any) -> str:
    """Describe a type, as in `whole number, at least 1, or auto`."""
    if hint in (Duration, AnyPath):
        return "duration" if hint == Duration else "path"
    origin, parts = get_origin(hint), get_args(hint)
    if within := [extra for extra in parts[1:] if isinstance(extra, Within)]:
        return f"duration, shortened to {within[0].fraction:g}dur by schedule.fit=on"
    if origin is Annotated and get_origin(parts[0]) is list:
        return _list(get_args(parts[0])[0], parts[1:])
    if origin is Annotated:
        return ", ".join([in_words(parts[0]), *_bounds(parts[1:])])
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (Union, UnionType):
        return ", or ".join(in_words(part) for part in parts)
    if origin is list:
        return _list(parts[0])
    if origin is dict:
        return f"mapping of {in_words(parts[0])} to {in_words(parts[1])}"
    return "`_target_` and its keywords" if isinstance(hint, type) and issubclass(hint, Called) else _WORDS[hint]


def _list(item: Any, extras: tuple[Any, ...] = ()) -> str:
    """Describe a list of a type, as in `list of 2 numbers, above 0`."""
    limits = [limit for extra in extras for limit in getattr(extra, "metadata", [])]
    least, most = (max((getattr(one, name, 0) for one in limits), default=0) for name in ("min_length", "max_length"))
    count = f"{most} " if most else f"at least {least} " if least > 1 else ""
    noun, comma, bounds = in_words(item).partition(",")
    first, of, rest = noun.partition(" of ")
    return f"list of {count}{first}s{of}{rest}{comma}{bounds}"


def _bounds(extras: tuple[Any, ...]) -> Iterator[str]:
    for extra in extras:
        limits = extra.metadata if isinstance(extra, FieldInfo) else []
        for limit in limits:
            for name, words in _BOUNDS.items():
                if (bound := getattr(limit, name, None)) is not None:
                    yield f"{words} {bound:g}" if bound < 2**53 else f"{words} 2^{bound.bit_length() - 1}"
            if (length := getattr(limit, "min_length", None)) is not None:
                yield "one character" if length == 1 else f"at least {length} items"


def default(name: str, files: Iterable[Option]) -> str:
    """Return the value that all options have, or the value of each option."""
    values = {option.name: _as_yaml(option.values[name]) for option in files if name in option.values}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    if len(values) > MANY:
        return "depends on the option"
    return ", ".join(f"{option}: {value}" for option, value in values.items())


def _as_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{text}`"
