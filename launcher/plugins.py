"""What installed packages add to the launcher by entry points: verbs, options of verbs, loggers."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from launcher.errors import one_line

# A mapping of verbs to pairs: the module of the verb's file, and what the verb is for.
VERBS = "train.verbs"
# By the name of a verb, a module with `configure(parser)` and `answer(arguments)`, the exit code or None to pass on.
OPTIONS = "train.options"
# By the name of a logger, its values' dataclass, with `check()` and `sink(folder, config)`.
LOGGERS = "train.loggers"


@cache
def registered(group: str) -> dict[str, Any]:
    """Name to loaded object of each entry point of a group; a broken one is skipped with a warning."""
    loaded = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            loaded[point.name] = point.load()
        # note: another package's code is imported, which may raise anything
        except Exception as error:
            _warn(point, error)
    return loaded


def _warn(point: EntryPoint, error: Exception) -> None:
    if "RANK" in os.environ:
        return  # note: the launcher has printed it once
    package = f" of the package {point.dist.name}" if point.dist else ""
    reason = one_line(str(error) or type(error).__name__)
    print(f"warning: skipped {point.name} = {point.value}{package}: {reason}", file=sys.stderr)
