"""Changes of a library's network that an export repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Surgery:
    """How an export repeats an algorithm's change of a library's network.

    `change(network, **values)` applies it in place, before weights are loaded; `values` must be JSON values. Its source
    and that of `parts`, in this order, may use only each other and the imports of `launcher.weights.standalone`.
    """

    change: Callable[..., Any]
    values: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Callable[..., Any], ...] = ()
