"""A stand-in for CUDA graphs on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor


@dataclass
class StandIn:
    """Restores `state` after a capture, which executes nothing on a GPU; a replay calls the function again."""

    state: Callable[[], list[Tensor]]
    captures: int = 0
    warmup_steps: int = 0
    dropped: list[int] = field(default_factory=list)
    pools: int = 0

    def new_pool(self) -> None:
        self.pools += 1

    def side_stream(self) -> nullcontext[None]:
        self.warmup_steps += 1
        return nullcontext()

    def capture(self, function: Callable[[], Sequence[Tensor]]) -> tuple[StandInGraph, Sequence[Tensor]]:
        before = [(tensor, tensor.clone()) for tensor in self.state()]
        outputs = function()
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        self.captures += 1
        return StandInGraph(self, self.captures, function, outputs), outputs


@dataclass
class StandInGraph:
    owner: StandIn
    number: int
    function: Callable[[], Sequence[Tensor]]
    outputs: Sequence[Tensor]
    replaying: ClassVar[bool] = False

    def replay(self) -> None:
        StandInGraph.replaying = True
        for output, value in zip(self.outputs, self.function(), strict=True):
            output.copy_(value)
        StandInGraph.replaying = False

    def reset(self) -> None:
        self.owner.dropped.append(self.number)
