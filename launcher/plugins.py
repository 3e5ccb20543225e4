"""Entry points by which installed packages extend the launcher: verbs, options of verbs, loggers."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from launcher.errors import one_line

# Mapping of verb to (module, description).
VERBS = "train.verbs"
# By verb: a module with `configure(parser)` and `handle(arguments)`, which returns the exit code or None to continue.
OPTIONS = "train.options"
# By logger: the dataclass of its values, with `check()` and `sink(folder, config)`.
LOGGERS = "train.loggers"


@cache
def registered(group: str) -> dict[str, Any]:
    """Load the entry points of a group by name; skip broken ones with a warning."""
    loaded = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            loaded[point.name] = point.load()
        # note: importing another package's code may raise anything
        except Exception as error:
            _warn(point, error)
    return loaded


def _warn(point: EntryPoint, error: Exception) -> None:
    if "RANK" in os.environ:
        return  # note: the launcher process has printed it
    package = f" of the package {point.dist.name}" if point.dist else ""
    reason = one_line(str(error) or type(error).__name__)
    print(f"warning: skipped {point.name} = {point.value}{package}: {reason}", file=sys.stderr)
