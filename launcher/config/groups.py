"""The options of conf/'s groups, a user's own among them, without composing them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config.yaml_file import read_mapping
from launcher.errors import UserError

_MOST_BASES = 10


def files(group: str, folders: Sequence[Path] | None = None) -> dict[str, Path]:
    """Name to file of a group's options, or of all algorithms, sorted."""
    searched = paths.search_path() if folders is None else folders
    found = {path.stem: path for folder in reversed(searched) for path in (folder / group).glob("*.yaml")}
    return dict(sorted(found.items()))


def options(group: str, folders: Sequence[Path] | None = None) -> list[str]:
    """Names of a group's options, or of all algorithms."""
    return list(files(group, folders))


def about(group: str, name: str) -> str:
    """What an option or algorithm is: the remark at the start of its file, which may be empty."""
    lines = files(group)[name].read_text(encoding="utf-8").splitlines()
    remarks = itertools.takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line[2:].strip() for line in remarks if not line.startswith("# @"))


def values(group: str, name: str, folders: Sequence[Path] | None = None, depth: int = 0) -> dict[str, Any]:
    """The values of an option, over those of the options of the same group that its defaults list names.

    Raises:
        UserError: a file is no mapping, or names options that there are not, or itself.
    """
    known = files(group, folders)
    if name not in known or depth > _MOST_BASES:
        raise UserError(f"{group}/{name}: its defaults list names no option that can be read")
    own = read_mapping(known[name])
    below: dict[str, Any] = {}
    for base in own.pop("defaults", []):
        if isinstance(base, str) and base != "_self_":
            below.update(values(group, base, folders, depth + 1))
    return {**below, **own}
