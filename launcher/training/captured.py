"""Forward, backward and update as CUDA graphs, on request: one for each kind of step, replayed on inputs that stay put.

A step that cannot be captured runs as it is, and the run says why once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

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


class CapturedSteps:
    """Does a step's work on images and targets by replaying a graph of it, one for each kind and shape.

    Graphs of one image size are alive: sizes never shrink during a run, and the next one's replace them, with their
    memory. All that the work reads besides its inputs must stay in its place from step to step; what it returns is
    copied, since the next graph may write there.
    """

    def __init__(self, capturer: Capturer):
        self._capturer = capturer
        self._alive: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor], Sequence[Tensor]]] = {}
        self._taken: Counter[Hashable] = Counter()
        self._size: torch.Size | None = None
        self._failed = False

    def __call__(self, kind: Hashable, work: Work, images: Tensor, targets: Tensor) -> Sequence[Tensor]:
        """Images [B, C, H, W] and targets to what the work returns; `kind` tells apart what shapes do not."""
        if images.shape[2:] != self._size:
            self.forget()
            self._size = images.shape[2:]
        key = kind, _layout(images), _layout(targets)
        if key not in self._alive and not self._failed:
            self._taken[key] += 1
            if self._taken[key] <= WARM_UP:
                with self._capturer.aside():
                    return work(images, targets)
            self._capture(key, work, images, targets)
        if self._failed:
            return work(images, targets)
        graph, inputs, outputs = self._alive[key]
        for static, tensor in zip(inputs, (images, targets), strict=True):
            static.copy_(tensor)
        graph.replay()
        return [output.clone() for output in outputs]

    def _capture(self, key: Hashable, work: Work, images: Tensor, targets: Tensor) -> None:
        inputs = images.clone(), targets.clone()
        try:
            graph, outputs = self._capturer.capture(lambda: work(*inputs))
        except RuntimeError as error:
            self.forget()
            self._failed = True
            print(uncaptured(str(error).partition("\n")[0]), flush=True)
        else:
            self._alive[key] = graph, inputs, outputs

    def forget(self) -> None:
        """Drop all graphs: what they read is no longer where it was, or of another size."""
        for graph, _, _ in self._alive.values():
            graph.reset()
        self._alive.clear()
        self._taken.clear()


def _layout(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype


def uncaptured(reason: str) -> str:
    """What a run says of steps that are not captured."""
    return f"cuda_graphs=on: not capturing steps ({reason}); training without CUDA graphs"
