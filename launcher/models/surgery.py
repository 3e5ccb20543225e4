"""Changes of a network that its evaluation sees, as source code that needs torch and torchvision alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WITHOUT = "SURGERY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}\n"


@dataclass(frozen=True)
class Surgery:
    """How the change that an algorithm makes of torchvision's network is made again where this project is not.

    `change(network, **values)` makes it in place, on weights that are still to be loaded. Its source and that of
    `parts`, in this order, may use each other and what `launcher.models.standalone` imports, nothing else.
    values: what JSON can hold.
    """

    change: Callable[..., Any]
    values: dict[str, Any]
    parts: tuple[Callable[..., Any], ...] = ()


def model_source(surgeries: Mapping[str, Surgery]) -> str:
    """The module that rebuilds a network which has had these surgeries, by name and in this order."""
    parts = dict.fromkeys(part for surgery in surgeries.values() for part in (*surgery.parts, surgery.change))
    rows = "".join(f'    "{name}": ({s.change.__name__}, {s.values!r}),\n' for name, s in surgeries.items())
    code = [inspect.getsource(part) for part in parts] + [_WITHOUT.replace("{}", f"{{\n{rows}}}")]
    text = (Path(__file__).with_name("standalone.py")).read_text(encoding="utf-8")
    assert text.count(_WITHOUT) == 1
    return text.replace(_WITHOUT, "\n\n".join(code)) if surgeries else text
