"""What installed packages add to the launcher by entry points: verbs, options of verbs, loggers."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

# A mapping of verbs to `Verb`s.
VERBS = "train.verbs"
# By the name of a verb, a module with `configure(parser)` and `answer(arguments)`, the exit code or None to pass on.
OPTIONS = "train.options"
# By the name of a logger, its values' dataclass, with `check()` and `sink(folder, config)`.
LOGGERS = "train.loggers"


@cache
def registered(group: str) -> dict[str, Any]:
    """Name to loaded object of each entry point of a group."""
    return {point.name: point.load() for point in sorted(entry_points(group=group), key=lambda point: point.name)}
