"""Words of the command line to assignments, by Hydra's own override grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from launcher.config.layers import COMMAND_LINE
from launcher.errors import Problem

OFF = "off"

_LONGEST = 10_000
_DEEPEST = 10
_KEY_SEPARATOR = re.compile(r"[./]")


@dataclass(frozen=True)
class Assignment:
    """`key=value` as typed; a deletion `~algorithms.X` is `algorithms.X=off`."""

    key: str
    value: Any


def parse(words: Sequence[str]) -> tuple[list[Assignment], list[Problem]]:
    """Assignments in the order of typing, and a problem for each word that is none."""
    parser = OverridesParser.create()
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals and not word.startswith("~"):
            problems.append(
                Problem("is no verb and no key=value; `train --help` lists the verbs", word, "", COMMAND_LINE)
            )
            continue
        if len(word) > _LONGEST or len(_KEY_SEPARATOR.findall(key)) > _DEEPEST:
            problems.append(Problem("is longer or nested deeper than any value here", key, text, COMMAND_LINE))
            continue
        try:
            override = parser.parse_override(word)
            if override.is_sweep_override():
                problems.append(Problem("takes one value here; write a list as [a,b]", key, text, COMMAND_LINE))
            elif override.package or not override.key_or_group:
                problems.append(Problem("is no key=value", word, text, COMMAND_LINE))
            elif override.is_delete():
                assignments.append(Assignment(override.key_or_group.replace("/", "."), OFF))
            else:
                assignments.append(Assignment(override.key_or_group.replace("/", "."), _plain(override.value())))
        except (HydraException, ValueError, RecursionError):
            message = "cannot be read; quote special characters, such as 'key=\"a value, with a comma\"'"
            problems.append(Problem(message, key, text, COMMAND_LINE))
    return assignments, problems


def _plain(value: Any) -> Any:
    """Hydra's quoted strings and nested values as plain Python ones."""
    if isinstance(value, dict):
        return {str(_plain(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return getattr(value, "text", value)
