"""The rented machines: the options of `hardware` that are rows of one table, conf/hardware.yaml."""

import re
from functools import cache
from typing import Any

from launcher import paths
from launcher.config.yaml_file import read_mapping


@cache
def rows(group: str) -> dict[str, dict[str, Any]]:
    """Return the options of a group that are rows of a table: the rented machines of conf/hardware.yaml, by name.

    `about` is the provider.
    """
    if group != "hardware":
        return {}
    table = read_mapping(paths.CONF / "hardware.yaml")
    columns, known = table.pop("columns"), {}
    for provider, shared in table.items():
        for name, cells in shared.pop("machines").items():
            own = {"about": re.sub(r" \d+$", "", provider), "name": name, "currency": "USD"}
            known[name] = {**own, **dict(zip(columns, cells, strict=True)), **shared}
    return dict(sorted(known.items()))
