"""A change of a network that its evaluation sees, so that an export must make it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Surgery:
    """How an export repeats the change that an algorithm makes of a library's network.

    `change(network, **values)` makes it in place, on weights that are still to be loaded. Its source and that of
    `parts`, in this order, may use each other and what `launcher.weights.standalone` imports, nothing else.
    values: what JSON can hold.
    """

    change: Callable[..., Any]
    values: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Callable[..., Any], ...] = ()
