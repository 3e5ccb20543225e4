"""Read untrusted YAML files as plain values: no tags, no aliases, bounded size and depth."""

import pickle
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, ScalarNode

from launcher.counts import count_of
from launcher.errors import UserError
from launcher.files.disk import patiently

# note: libyaml's loader is ten times faster, and a study reads thousands of configs
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_BYTES = 100_000
_PACKAGE = re.compile(r"^# @package +(\S+)", re.MULTILINE)
_DEEPEST = 20
_TAG = "tag:yaml.org,2002:"
# note: on, off, yes and no are texts, as on the command line and in YAML 1.2
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
# note: YAML 1.1, which PyYAML reads, takes 5e-4 for text, and 1:30, 0x1f and 017 for whole numbers
_NUMBERS = {
    f"{_TAG}int": re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})$"),
    f"{_TAG}float": re.compile(
        r"(?:[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$"
    ),
}


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that is a mapping; keys are text, below the first level also integers.

    Raises UserError if it is missing or has more than plain values, with the line, and DiskError if it cannot be read.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder; set a YAML file")
    try:
        content = patiently(path.read_bytes, path)
        if len(content) > _MOST_BYTES:
            raise UserError(f"{path} cannot be read: larger than {count_of(_MOST_BYTES, 'byte')}; set a smaller file")
        values = pickle.loads(_plain(content))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check its path, size and permissions") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UserError(f"{path}{f':{mark.line + 1}' if mark else ''}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", "not YAML")
        raise UserError(f"{path} cannot be read: {reason}; save it as UTF-8 YAML") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"{path}:1: must be a mapping of keys to values, such as epochs: 16")
    return values


def package(path: Path) -> str | None:
    """Return the package of the `# @package` line at the start of a config; None: the group's."""
    with path.open(encoding="utf-8") as file:
        match = _PACKAGE.search(file.read(512))
    return match[1] if match else None


def defaults_list(values: Mapping[str, Any], path: Path) -> list[tuple[str, Any]]:
    """Return the entries of a config's defaults list: (group, options), or ("", name of another config).

    Raises UserError if it is not a list, or an entry is invalid.
    """
    entries = values.get("defaults", [])
    pairs: list[tuple[Any, Any]] = []
    for entry in entries if isinstance(entries, list) else [{}]:
        pairs += entry.items() if isinstance(entry, dict) and entry else [("", entry)]
    names = [
        name for pair in pairs for part in pair for name in (part if isinstance(part, list) and pair[0] else [part])
    ]
    if not all(isinstance(name, str) and "${" not in name for name in names):
        raise UserError(
            f"{path}: a defaults list must hold names, or options of groups such as - override model: resnet50"
        )
    return pairs


def as_yaml(values: Mapping[str, Any], *, flow: bool | None = False) -> str:
    """Dump plain values as text that `read_mapping` reads back unchanged; flow: on one line, None: only innermost."""
    layout: dict[str, Any] = {"sort_keys": False, "default_flow_style": flow, "width": 110, "allow_unicode": True}
    return str(yaml.dump(dict(values), Dumper=_PlainDumper, **layout))


@lru_cache(maxsize=200)
def _plain(contents: bytes) -> bytes:
    """Return the pickled values of YAML, which is ten times faster to read; a command reads some files ten times."""
    text = contents.decode("utf-8")
    _check_plain(text)
    return pickle.dumps(yaml.load(text, _PlainLoader))


def _check_plain(text: str) -> None:
    """Check a text's events before building values, since libyaml's recursion has no bound.

    Raises ConstructorError if it has aliases or tags, or is nested too deeply.
    """
    depth = 0
    for event in yaml.parse(text, _PlainLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases (*) are not supported; write the values out", event.start_mark)
        if (tag := getattr(event, "tag", None)) is not None:
            raise _refused(f"tags such as {tag} are not supported; remove them", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise _refused(f"nested more than {_DEEPEST} levels deep; use fewer levels", event.start_mark)


class _PlainLoader(_FASTEST):
    """Load only null, booleans, numbers, text, lists and mappings."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own form
        first: [(tag, pattern) for tag, pattern in resolvers if tag == f"{_TAG}null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if type(key) not in (str, int):
                raise _refused("a key must be text; quote it", key_node.start_mark)
            if key in seen:
                raise _refused(f"duplicate key {key}; remove one", key_node.start_mark)
            seen.add(key)
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values


class _PlainDumper(yaml.SafeDumper):
    """Quote text that the loader would read as a number; dump several lines as a block, and equal values in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> ScalarNode:
        is_plain = all(map(str.isprintable, lines := text.split("\n")))
        return self.represent_scalar(f"{_TAG}str", text, style='"' if not is_plain else "|" if lines[1:] else None)


def _refused(problem: str, mark: Any) -> ConstructorError:
    return ConstructorError(None, None, problem, mark)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)
_PlainLoader.add_implicit_resolver(f"{_TAG}bool", _BOOL, list("tTfF"))
for _tag, _pattern in _NUMBERS.items():
    for _class in (_PlainLoader, _PlainDumper):
        _class.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
