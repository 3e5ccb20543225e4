"""`${key}` in a value: another value of the same config, and nothing else that the machine knows."""

from __future__ import annotations

import copy
import re
from typing import Any

from launcher.config.keys import nearest_key
from launcher.config.layers import DEFAULTS, Layers, leaves
from launcher.errors import Problem, Problems

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
# A text grows with every reference in it, and each of them may do so again.
_LONGEST = 1000
_MOST_STEPS = 10


def resolve(layers: Layers, problems: Problems) -> None:
    """Put the values in the place of the references; a problem for each that leads nowhere."""
    references = _References(layers)
    for key, value in list(leaves(layers.values)):
        if not _refers(value):
            continue
        try:
            resolved = references.resolved(value, 1)
        except ValueError as error:
            problems.append(Problem(f"cannot be resolved: {error}", key, value, layers.origin(key)))
        else:
            layers.set(key, resolved, layers.origin(key) or DEFAULTS)


def _refers(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


class _References:
    """Resolves texts, each once: a chain of texts that all refer many times to the next would take for ever."""

    def __init__(self, layers: Layers):
        self._layers = layers
        self._known: dict[str, Any] = {}

    def resolved(self, text: str, steps: int) -> Any:
        """A text's value: of any type where the text is one reference, else text.

        Raises:
            ValueError: it cannot be; says why.
        """
        if text not in self._known:
            if steps > _MOST_STEPS:
                raise ValueError(f"it leads back to itself, or over more than {_MOST_STEPS} others")
            if len(text) > _LONGEST:
                raise ValueError(f"it is longer than {_LONGEST} characters")
            self._known[text] = self._resolve(text, steps)
        return copy.deepcopy(self._known[text])

    def _resolve(self, text: str, steps: int) -> Any:
        if match := _REFERENCE.fullmatch(text):
            return self._value(match[1], steps)
        if "${" in _REFERENCE.sub(" ", text):
            raise ValueError("a reference is ${key}, the key of another value, and nothing else")
        whole = _REFERENCE.sub(lambda match: _as_text(match[1], self._value(match[1], steps)), text)
        if len(whole) > _LONGEST:
            raise ValueError(f"it becomes longer than {_LONGEST} characters")
        return whole

    def _value(self, key: str, steps: int) -> Any:
        parent, _, leaf = key.rpartition(".")
        within = self._layers.get(parent) if parent else self._layers.values
        if not isinstance(within, dict) or leaf not in within:
            found = nearest_key(key)
            raise ValueError(f"{key} is no key" + (f"; did you mean {found}?" if found and found != key else ""))
        value = within[leaf]
        if isinstance(value, dict):
            raise ValueError(f"{key} is a mapping; name one of its values")
        return self.resolved(value, steps + 1) if _refers(value) else value


def _as_text(key: str, value: Any) -> str:
    if isinstance(value, list):
        raise ValueError(f"{key} is a list, which cannot stand within a text")
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
