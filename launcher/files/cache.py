"""Values that take seconds to compute, stored as JSON below the cache folder; damaged ones are computed again."""

import functools
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from launcher import paths
from launcher.files import atomic

ValueT = TypeVar("ValueT")


def cached(name: str, facts: Any, kind: type[ValueT], compute: Callable[[], ValueT]) -> ValueT:
    """Return the value that was computed for the same facts, else compute and store it; `name` is its folder."""
    if (value := stored(name, facts, kind)) is None:
        value = compute()
        # note: it only saves time
        with suppress(OSError):
            path = path_of(name, facts)
            path.parent.mkdir(parents=True, exist_ok=True)
            # note: Python's JSON can state names that are not UTF-8
            atomic.write_text(path, json.dumps(TypeAdapter(kind).dump_python(value)))
    return value


def stored(name: str, facts: Any, kind: type[ValueT]) -> ValueT | None:
    """Return the value for some facts, plain values; None if there is none."""
    try:
        return TypeAdapter(kind).validate_python(json.loads(path_of(name, facts).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


@functools.cache
def source_digest(root: Path, patterns: tuple[str, ...]) -> str:
    """Return a digest of source files below `root`, a fact of values that depend on the code."""
    digest = hashlib.sha256()
    for path in (path for pattern in patterns for path in sorted(root.glob(pattern))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def path_of(name: str, facts: Any, suffix: str = ".json") -> Path:
    """Return the file of what is computed for some facts, plain values; `name` is its folder."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return paths.cache() / name / f"{digest[:32]}{suffix}"
