"""The options of conf/'s groups, a user's own among them, without composing them; machines and their prices."""

from __future__ import annotations

import datetime
import itertools
import re
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config.schema import Hardware
from launcher.config.validate import typed
from launcher.config.yaml_file import defaults_list, read_mapping
from launcher.errors import UserError

_MOST_BASES = 10
_YEAR = datetime.timedelta(days=365)


def files(group: str) -> dict[str, Path]:
    """Name to file of a group's options, or of all algorithms, sorted."""
    found = {path.stem: path for folder in reversed(paths.search_path()) for path in (folder / group).glob("*.yaml")}
    return dict(sorted(found.items()))


def options(group: str) -> list[str]:
    """Names of a group's options, or of all algorithms."""
    return list(files(group))


def about(group: str, name: str) -> str:
    """What an option or algorithm is: the remark at the start of its file, which may be empty."""
    lines = files(group)[name].read_text(encoding="utf-8").splitlines()
    remarks = itertools.takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line[2:].strip() for line in remarks if not line.startswith("# @"))


def values(group: str, name: str, depth: int = 0) -> dict[str, Any]:
    """The values of an option, over those of the options of the same group that its defaults list names.

    Raises:
        UserError: a file is no mapping, or names options that there are not, or itself.
    """
    path = files(group).get(name)
    if path is None or depth > _MOST_BASES:
        raise UserError(f"{group}/{name}: the defaults list has a missing option or a loop; name existing options")
    own = read_mapping(path)
    bases = [base for entry, base in defaults_list(own, path) if not entry and base != "_self_"]
    below = {key: value for base in bases for key, value in values(group, base, depth + 1).items()}
    return {**below, **{key: value for key, value in own.items() if key != "defaults"}}


def machines() -> dict[str, Hardware]:
    """Every machine of conf/hardware, a user's own among them, by the name of its file.

    Raises:
        UserError: a file has values that no machine has.
    """

    def machine(name: str, path: Path) -> Hardware:
        return typed(Hardware, values("hardware", name), lambda key: str(path), "hardware.")

    return {name: machine(name, path) for name, path in files("hardware").items()}


def is_named(gpu: str | None, device: str) -> bool:
    """Whether a device such as `NVIDIA A100-SXM4-40GB` is a machine's GPU: a whole word, an A10 is no A100."""
    return gpu is not None and re.search(rf"\b{re.escape(gpu.split(' ')[0])}\b", device) is not None


def price_age(machine: Hardware, today: datetime.date | None = None) -> str:
    """When a machine's price was so: `2026-09-18`, `2022-07, over a year old` or `unknown date`."""
    if machine.price_date is None:
        return "unknown date"
    try:
        since = datetime.date.fromisoformat((machine.price_date + "-01-01")[:10])
    except ValueError:  # note: a user's own words, such as last week
        return machine.price_date
    return machine.price_date + ", over a year old" * ((today or datetime.date.today()) - since > _YEAR)
