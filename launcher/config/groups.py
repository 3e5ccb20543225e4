"""The options of the config groups, including the user's, without composing them; machines and their prices."""

import datetime
import itertools
import re
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config.hardware import Hardware
from launcher.config.layers import merged
from launcher.config.rented import rows
from launcher.config.validate import typed
from launcher.config.yaml_file import defaults_list, read_mapping
from launcher.errors import UserError

_MOST_BASES = 10
_YEAR = datetime.timedelta(days=365)


def files(group: str) -> dict[str, Path]:
    """Return the files of a group's options, or of all algorithms, by sorted name."""
    by_name = {path.stem: path for folder in reversed(paths.search_path()) for path in (folder / group).glob("*.yaml")}
    return dict(sorted(by_name.items()))


def options(group: str) -> list[str]:
    """Return the names of a group's options, or of all algorithms."""
    return sorted({*files(group), *rows(group)})


def about(group: str, name: str) -> str:
    """Return the description of an option or algorithm: the comment at the start of its file, possibly empty."""
    if name not in files(group):
        return str(rows(group)[name]["about"])
    lines = files(group)[name].read_text(encoding="utf-8").splitlines()
    remarks = itertools.takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line[2:].strip() for line in remarks if not line.startswith("# @"))


def values(group: str, name: str, depth: int = 0) -> dict[str, Any]:
    """Return the values of an option, merged over those of the options in its defaults list.

    Raises UserError if a file is not a mapping, or its defaults list has a missing option or a loop.
    """
    path = files(group).get(name)
    if path is None and name in rows(group):
        return {key: value for key, value in rows(group)[name].items() if key != "about"}
    if path is None or depth > _MOST_BASES:
        raise UserError(f"{group}/{name}: the defaults list has a missing option or a loop; list existing options")
    own = read_mapping(path)
    bases = [base for entry, base in defaults_list(own, path) if not entry and base != "_self_"]
    below = [values(group, base, depth + 1) for base in bases]
    return merged(*below, {key: value for key, value in own.items() if key != "defaults"})


def machines() -> dict[str, Hardware]:
    """Return all machines of conf/hardware.yaml, and of the files of conf/hardware, including the user's, by name.

    Raises UserError if a file has an invalid value.
    """
    own = files("hardware")

    def machine(name: str) -> Hardware:
        return typed(Hardware, values("hardware", name), lambda key: str(own.get(name)), "hardware.")

    return {name: machine(name) for name in options("hardware")}


def gpu_model(gpu: str) -> str:
    """Return the name of a GPU of conf/hardware without its memory: `RTX 4090` for `RTX 4090 24GB`."""
    return re.sub(r" \d+GB$", "", gpu)


def is_named(gpu: str | None, device: str) -> bool:
    """Return whether a device such as `NVIDIA A100-SXM4-40GB` is a machine's GPU, by whole words.

    A10 is not A100, and RTX 3090 is neither RTX 3090 Ti nor the chip of a laptop.
    """
    if gpu is None:
        return False
    return re.search(rf"\b{re.escape(gpu_model(gpu))}\b(?! (?:Ti|D|SUPER|Laptop)\b)", device) is not None


def price_age(machine: Hardware, today: datetime.date | None = None) -> str:
    """Return the date of a machine's price: `2026-09-18`, `2022-07, over a year old` or `unknown date`."""
    if machine.price_date is None:
        return "unknown date"
    try:
        since = datetime.date.fromisoformat((machine.price_date + "-01-01")[:10])
    except ValueError:  # note: the user's own text, such as last week
        return machine.price_date
    is_old = (today or datetime.date.today()) - since > _YEAR
    return f"{machine.price_date}, over a year old" if is_old else machine.price_date
