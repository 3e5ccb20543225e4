"""Changes of a network that its evaluation sees, as source code that needs torch and torchvision alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIBRARYS = "NETWORK: Callable[..., nn.Module] | None = None\n"
_WITHOUT = "SURGERY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}\n"


@dataclass(frozen=True)
class Surgery:
    """How the change that an algorithm makes of torchvision's network is made again where this project is not.

    `change(network, **values)` makes it in place, on weights that are still to be loaded. Its source and that of
    `parts`, in this order, may use each other and what `launcher.weights.standalone` imports, nothing else.
    values: what JSON can hold.
    """

    change: Callable[..., Any]
    values: dict[str, Any]
    parts: tuple[Callable[..., Any], ...] = ()


def model_source(surgeries: Mapping[str, Surgery], network: Sequence[Callable[..., Any]] = ()) -> str:
    """The module that rebuilds a network which has had these surgeries, by name and in this order.

    network: its parts and then itself, if it is no library's; their source may use what that of surgeries may.
    """
    parts = dict.fromkeys(part for surgery in surgeries.values() for part in (*surgery.parts, surgery.change))
    rows = "".join(f'    "{name}": ({s.change.__name__}, {s.values!r}),\n' for name, s in surgeries.items())
    text = (Path(__file__).parents[1] / "weights" / "standalone.py").read_text(encoding="utf-8")
    assert text.count(_WITHOUT) == text.count(_LIBRARYS) == 1
    if surgeries:
        changed = _WITHOUT.replace("{}", f"{{\n{rows}}}")
        text = text.replace(_WITHOUT, "\n\n".join([*map(inspect.getsource, parts), changed]))
    if network:
        own = _LIBRARYS.replace("None\n", f"{network[-1].__name__}\n")
        text = text.replace(_LIBRARYS, "\n\n".join([*map(inspect.getsource, network), own]))
    return text
