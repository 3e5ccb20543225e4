"""Forward, backward and update as CUDA graphs, on request: one for each kind of step, replayed on inputs that stay put.

A step that cannot be captured runs as it is, and the run says why once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

# Most graphs alive: each keeps its inputs, and in one pool for all what its passes need.
MOST = 8
# Steps of a kind that run as they are before the next is captured: what is made lazily is made in them.
WARM_UP = 3

Work = Callable[[Tensor, Tensor], Sequence[Tensor]]


class Capturer:
    """The device's part, as PyTorch's page on CUDA graphs has it: a side stream to warm up on, one pool for all graphs.

    A capture executes nothing.
    """

    def __init__(self, device: torch.device):
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            yield
        main.wait_stream(self._stream)

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> tuple[torch.cuda.CUDAGraph, Sequence[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            outputs = work()
        return graph, outputs


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, Tensor]
    outputs: Sequence[Tensor]


class CapturedSteps:
    """Does a step's work on images and targets by replaying a graph of it, one for each kind and shape.

    At most `MOST` graphs are alive: the one that was not used for longest goes, with its memory. All that the work
    reads besides its inputs must stay in its place from step to step; what it returns is copied, since the next
    graph may write there.
    """

    def __init__(self, capturer: Capturer):
        self._capturer = capturer
        self._alive: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._taken: dict[Hashable, int] = {}
        self._failed = False

    def __call__(self, kind: Hashable, work: Work, images: Tensor, targets: Tensor) -> Sequence[Tensor]:
        """Images [B, C, H, W] and targets to what the work returns; `kind` tells apart what shapes do not."""
        key = kind, _layout(images), _layout(targets)
        if key not in self._alive and not self._failed:
            taken = self._taken[key] = self._taken.get(key, 0) + 1
            if taken <= WARM_UP:
                with self._capturer.aside():
                    return work(images, targets)
            self._capture(key, work, images, targets)
        if self._failed:
            return work(images, targets)
        self._alive.move_to_end(key)
        captured = self._alive[key]
        for static, tensor in zip(captured.inputs, (images, targets), strict=True):
            static.copy_(tensor)
        captured.graph.replay()
        return [output.clone() for output in captured.outputs]

    def _capture(self, key: Hashable, work: Work, images: Tensor, targets: Tensor) -> None:
        if len(self._alive) == MOST:
            self._alive.popitem(last=False)[1].graph.reset()
        inputs = images.clone(), targets.clone()
        try:
            graph, outputs = self._capturer.capture(lambda: work(*inputs))
        except RuntimeError as error:
            self.forget()
            self._failed = True
            print(uncaptured(str(error).partition("\n")[0]), flush=True)
        else:
            self._alive[key] = _Captured(graph, inputs, outputs)

    def forget(self) -> None:
        """Drop all graphs: what they read is no longer where it was."""
        for captured in self._alive.values():
            captured.graph.reset()
        self._alive.clear()
        self._taken.clear()


def _layout(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype


def uncaptured(reason: str) -> str:
    """What a run says of steps that are not captured."""
    return f"cuda_graphs=on: steps are not captured ({reason}); they run as they are"
