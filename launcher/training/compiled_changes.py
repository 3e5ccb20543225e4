"""What prepares a batch as compiled code: augmenting, normalising, resizing and mixing in few passes over pictures."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from launcher.algorithms.engine import Change, one_after_the_other
from launcher.data.batch import Batch
from launcher.errors import is_of_the_machine


class CompiledChanges:
    """Does changes in turn, as `one_after_the_other` does.

    Compiled is what is met until `close`: chance may make other chains of changes, or tensors of other shapes. Those
    run as they are, so that no step compiles. `reason` says why none is compiled, if so.
    """

    def __init__(self, backend: str):
        # note: a second side makes the graph that serves all others
        self._compiled = torch.compile(_changed, backend=backend, fullgraph=True)
        self._met: set[Hashable] = set()
        self._is_open = True
        self.reason: str | None = None

    def close(self) -> None:
        """Compile nothing more."""
        self._is_open = False

    def __call__(self, changes: Sequence[Change], batch: Batch) -> Batch:
        key = batch.images.shape, batch.targets.shape, _signature(changes)
        if not (self._is_open or key in self._met):
            return one_after_the_other(changes, batch)
        try:
            images, targets = self._compiled(batch.images, batch.targets, list(changes))
        except Exception as error:
            if is_of_the_machine(error):
                raise
            self.reason = first_line(error)
            self._met.clear()
            self.close()
            return one_after_the_other(changes, batch)
        self._met.add(key)
        return replace(batch, images=images, targets=targets)


def first_line(error: Exception) -> str:
    """What went wrong; dynamo's own first line names the backend alone."""
    cause = getattr(error, "inner_exception", error)
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def _changed(images: Tensor, targets: Tensor, changes: list[Change]) -> tuple[Tensor, Tensor]:
    unknown: Any = None  # note: code that read them would hold for one step alone
    batch = one_after_the_other(changes, Batch(images, targets, unknown, unknown))
    return batch.images, batch.targets


def _signature(value: Any) -> Hashable:
    """What decides on a graph: functions, their numbers, and the shapes of their tensors."""
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, partial):
        return _signature([value.func, *value.args])
    if isinstance(value, list):
        return tuple(map(_signature, value))
    if callable(value):
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        return value.__qualname__, *(cell for cell in cells if isinstance(cell, int))
    return type(value).__name__
