"""The resolved config as a file: what the ranks read, what resume needs, and itself a valid config."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher import atomic
from launcher.config.schema import RunConfig
from launcher.config.validate import MISSING, validate
from launcher.config.yaml_file import as_yaml, read_mapping
from launcher.errors import Problem, UserError

_PLACE_ONLY = ("runs", "run_name")


def as_mapping(config: RunConfig) -> dict[str, Any]:
    """Plain nested values; algorithms that are not active are left out."""
    values = asdict(config)
    values["algorithms"] = {name: inner for name, inner in values["algorithms"].items() if inner is not None}
    return values


def digest(config: RunConfig) -> str:
    """SHA-256 of the values that decide the result: not of where the run is kept."""
    values = {key: value for key, value in as_mapping(config).items() if key not in _PLACE_ONLY}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def dump(config: RunConfig) -> str:
    """The config as YAML, in the schema's order."""
    return as_yaml(as_mapping(config))


def write(config: RunConfig, path: Path) -> None:
    """Write the config atomically."""
    atomic.write_text(path, dump(config))


def read(path: Path) -> RunConfig:
    """Read a resolved config.

    Raises:
        UserError: there is no such file, it is no YAML, or a value does not fit the schema.
    """
    try:
        values = read_mapping(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {path.parent} is no run folder") from None
    try:
        return validate(values)
    except UserError as error:
        problems = [Problem(_with_remedy(p.message), p.key, p.value, str(path)) for p in error.problems]
        raise UserError(*problems) from None


def _with_remedy(message: str) -> str:
    if message != MISSING:
        return message
    return f"{MISSING}, as where another version of train has written the file: use that one, or write the key into it"
