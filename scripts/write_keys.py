"""Write docs/keys.md, the list of all keys: types from the schema, defaults and descriptions from conf/.

Run it after either changes: .venv/bin/python scripts/write_keys.py
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic.fields import FieldInfo

from launcher.config.algorithms import declarations
from launcher.config.described import MANY, Option, inside, read, remark
from launcher.config.fields import AnyPath, Duration, Within
from launcher.config.keys import options
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.targets import Called
from launcher.paths import CONF
from launcher.submit.kubernetes import Kubernetes
from launcher.submit.sky import Sky
from launcher.submit.slurm import Slurm

PAGE = Path(__file__).resolve().parents[1] / "docs" / "keys.md"
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null", Any: "any value"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_HEAD = """\
# Every key

    train show recipe=hot --origin

This prints every value of a run and its origin. Set a value as `KEY=VALUE` on the command line
([Configuration](configuration.md)). Durations are `8ep` (epochs), `100ba` (batches) or `0.5dur` (a fraction of the
run). `scripts/write_keys.py` writes this page from the schema and `conf/`.
"""


def page() -> str:
    """Return the whole page."""
    train = read(CONF / "train.yaml")
    types = hints(RunConfig)
    parts = [_HEAD, "## The run\n", table("", RunConfig, [train])]
    for name in [name for name, hint in types.items() if options(hint) and name not in (*GROUPS, "algorithms")]:
        parts += [f"## {name}\n", table(f"{name}.", types[name], [inside(train, name)])]
    for group in GROUPS:
        parts += [f"## {group}\n", *section(f"{group}.", group, options(types[group]))]
    parts += ["## algorithms\n", *algorithms()]
    parts.append("## submit\n\nThese are values of `train submit`, not of the run.\n")
    for kind in (Slurm, Sky, Kubernetes):
        name = kind.__name__.lower()
        parts += [f"### --{name}\n", table("submit.", kind, [read(CONF / "submit" / f"{name}.yaml")])]
    return "\n".join(parts)


def section(prefix: str, group: str, schemas: list[type]) -> Iterator[str]:
    """Yield the parts of a group: its options by type, and their keys."""
    files = [read(path) for path in sorted((CONF / group).glob("*.yaml"))]
    for schema in schemas:
        same = [option for option in files if len(schemas) == 1 or option.name in own_names(schema)]
        yield "".join(
            f"`{group}={option.name}`{': ' * bool(option.description)}{option.description}  \n" for option in same
        )
        yield table(prefix, schema, same)


def algorithms() -> Iterator[str]:
    for name, schema in declarations().items():
        option = read(CONF / "algorithms" / f"{name}.yaml")
        yield f"### {name}\n\n{option.description}\n"
        yield table(f"algorithms.{name}.", schema, [option]) if option.values else "No values: on or off.\n"


def own_names(schema: type) -> list[str]:
    """Return the options of a type: the values that its `name` can have."""
    return in_words(own_types(schema)["name"]).split(" or ")


def table(prefix: str, schema: type, files: list[Option]) -> str:
    """Return the table of keys: accepted values, defaults and descriptions; nested mappings follow."""
    rows = list(_rows(prefix, schema, files))
    if not rows:
        return "No values of its own.\n"
    return "\n".join(["| key | takes | default | |", "|---|---|---|---|", *rows]) + "\n"


def _rows(prefix: str, schema: type, files: list[Option]) -> Iterator[str]:
    for name, hint in own_types(schema).items():
        if name == "name" and prefix != "submit.":
            continue
        yield f"| `{prefix}{name}` | {in_words(hint)} | {default(name, files)} | {remark(name, files)} |"
    for name, hint in hints(schema).items():
        inner = options(hint)
        if inner and schema is not RunConfig:
            # note: the values of a logger among several are those of its own option
            same = CONF / prefix.partition(".")[0] / f"{name}.yaml"
            below = [read(same)] if same.is_file() else [inside(option, name) for option in files]
            yield from _rows(f"{prefix}{name}.", inner[0], below)


def hints(schema: type) -> dict[str, Any]:
    """Return the type of each field, with its bounds, by name."""
    known = get_type_hints(schema, include_extras=True)
    return {field.name: known[field.name] for field in fields(schema)}


def own_types(schema: type) -> dict[str, Any]:
    """Return the type of each field that is not a group or mapping, with its bounds, by name."""
    return {name: hint for name, hint in hints(schema).items() if not options(hint)}


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
    values = {option.name: shown(option.values[name]) for option in files if name in option.values}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    if len(values) > MANY:
        return "depends on the option"
    return ", ".join(f"{option}: {value}" for option, value in values.items())


def shown(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
