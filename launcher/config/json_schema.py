"""The comments of conf/ about options and keys, and the JSON Schema of a run's config, which has them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from launcher.config.groups import about, values
from launcher.config.layers import merged
from launcher.config.rented import rows
from launcher.config.schema import GROUPS, RunConfig
from launcher.paths import CONF

_KEY = re.compile(r"^( *)(\w[\w ]*):(?:\s+(?:\"[^\"]*\"|[^#]*?))?(?:\s+#\s(.*))?$")
# With more options than this, the values of each are not listed.
MANY = 8


@dataclass(frozen=True)
class Option:
    """One file of conf/: its name, the comment at its head, its values, and the comments beside them by dotted key.

    inherited: the keys whose comments are only in the options of its defaults list.
    """

    name: str
    description: str
    values: dict[str, Any]
    remarks: dict[str, str]
    inherited: frozenset[str] = frozenset()


def read(path: Path) -> Option:
    """Read a file of conf/ on top of the options in its defaults list."""
    text = path.read_text(encoding="utf-8")
    own, remarks = yaml.safe_load(text) or {}, dict(_remarks(text))
    listed = [name for name in own.pop("defaults", []) if name != "_self_" and path.stem != "train"]
    # note: a key that two of them have is described by the first
    bases = [read(path.with_name(f"{name}.yaml")) for name in reversed(listed)]
    values, below = merged(*(base.values for base in bases), own), merged(*(base.remarks for base in bases))
    return Option(path.stem, _description(text), values, below | remarks, frozenset(below.keys() - remarks.keys()))


def packaged(group: str) -> list[Option]:
    """Return the packaged options of a group, by name."""
    files = [read(path) for path in sorted((CONF / group).glob("*.yaml"))]
    of_table = [Option(name, about(group, name), values(group, name), {}) for name in rows(group)]
    return sorted([*files, *of_table], key=lambda one: one.name)


def inside(option: Option, name: str) -> Option:
    """Return the part of an option below one of its keys."""
    inner, start = option.values.get(name) or {}, f"{name}."
    remarks = {key.removeprefix(start): text for key, text in option.remarks.items() if key.startswith(start)}
    inherited = frozenset(key.removeprefix(start) for key in option.inherited if key.startswith(start))
    return Option(option.name, "", inner if isinstance(inner, dict) else {}, remarks, inherited)


def _description(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        if not line.startswith("# @"):
            lines.append(line[2:])
    return " ".join(lines)


def _remarks(text: str) -> Iterator[tuple[str, str]]:
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := _KEY.match(line):
            depth, name, remark = len(match[1]), match[2], match[3]
            parents = [(d, n) for d, n in parents if d < depth]
            if remark:
                yield ".".join([*(n for _, n in parents), name]), remark
            parents.append((depth, name))


def remark(name: str, files: Sequence[Option]) -> str:
    """Return the comment beside a key in conf/, with the option's name where the options differ.

    A comment that an option inherits is then printed once, for the option that has it.
    """
    comments = {option.name: option.remarks[name] for option in files if name in option.remarks}
    if len(set(comments.values())) == 1 and (len(comments) == len(files) or len(files) > MANY):
        return next(iter(comments.values()))
    inheriting = {option.name for option in files if name in option.inherited}
    return "; ".join(f"{option}: {text}" for option, text in comments.items() if option not in inheriting)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a resolved config: types and bounds, with the descriptions and defaults of conf/.

    A group has its options under `x-options`: the description and the values of each.
    """
    schema = TypeAdapter(RunConfig).json_schema()
    known: dict[str, Any] = schema.pop("$defs")
    keys = schema["properties"]
    _describe(schema, [read(CONF / "train.yaml")], known)
    for group in GROUPS:
        files = packaged(group)
        keys[group]["x-options"] = {one.name: {"description": one.description, "values": one.values} for one in files}
        keys[group]["description"] = f"the values of one option, which `{group}=NAME` chooses"
        of_name = keys[group].get("discriminator", {}).get("mapping", {})
        for kind in {of_name.get(one.name, keys[group].get("$ref")) for one in files} - {None}:
            own = _at(kind, known)
            _describe(own, [one for one in files if of_name.get(one.name, kind) == kind], known)
            _describe_others(own, files, known)
            own["properties"]["name"]["description"] = "the name of the option"
    for own in keys.values():
        if "$ref" in own:
            own.setdefault("description", _at(own["$ref"], known).get("description", ""))
    for name, own in keys["algorithms"]["properties"].items():
        # note: those of the user have no file there
        for option in map(read, (CONF / "algorithms").glob(f"{name}.yaml")):
            _describe(own, [option], known)
            own["description"] = option.description
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": known}


def _describe(schema: dict[str, Any], files: Sequence[Option], known: Mapping[str, Any]) -> None:
    """Add each key's comment in the files, and its default if all have the same; nested mappings follow."""
    for name, own in schema["properties"].items():
        if text := remark(name, files):
            own["description"] = text
        defaults = [option.values[name] for option in files if name in option.values]
        if "$ref" in own and name not in GROUPS:
            _describe(_at(own["$ref"], known), [inside(option, name) for option in files], known)
        elif defaults and all(one == defaults[0] for one in defaults):
            own["default"] = defaults[0]


def _describe_others(schema: dict[str, Any], files: Sequence[Option], known: Mapping[str, Any]) -> None:
    """Add the comments to the keys of other options of the group in an option, such as several loggers in one."""
    for other in files:
        for one in schema["properties"].get(other.name, {}).get("anyOf", []):
            if "$ref" in one:
                _describe(_at(one["$ref"], known), [other], known)


def _at(reference: str, known: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = known[reference.rpartition("/")[2]]
    return found
