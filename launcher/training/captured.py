"""Capture batch preparation, and forward, backward and update, in CUDA graphs; replay them on fixed inputs.

With several ranks the graphs have the collectives, which overlap with the backward pass. Steps that any rank cannot
capture run without graphs on all, and the run prints the reason once; with cuda_graphs=require it is an error.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.algorithms.engine import Changes, Engine
from launcher.compute.accelerator import has_streams, interface
from launcher.counts import count_of
from launcher.data.batch import Batch
from launcher.errors import Problem, UserError
from launcher.optimizers.base import MaskedOptimizer
from launcher.rank.group import Ranks, gather

# Steps of a kind that run without a graph before the next is captured: they create what is created lazily.
WARMUP_STEPS = 3

StepFunction = Callable[..., Sequence[Tensor]]


class Capturer:
    """Captures CUDA graphs as PyTorch's documentation does: a side stream for warmup, one memory pool for its graphs.

    Capturing executes no kernel.
    """

    def __init__(self, device: torch.device):
        self._device = interface(device)
        self._stream = self._device.Stream(device)
        self.new_pool()

    def new_pool(self) -> None:
        """Start a memory pool for the graphs to come; PyTorch frees the last one once all its graphs are reset."""
        self._pool = self._device.graph_pool_handle()

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        main = self._device.current_stream()
        self._stream.wait_stream(main)
        with self._device.stream(self._stream):
            yield
        main.wait_stream(self._stream)

    def capture(self, function: Callable[[], Sequence[Tensor]]) -> tuple[Any, Sequence[Tensor]]:
        graph, main = self._device.CUDAGraph(), self._device.current_stream()
        try:
            # note: in the default mode, a loader's thread that pins memory meanwhile breaks the capture
            with self._device.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                outputs = function()
        finally:
            # note: before PyTorch 2.15, a failed capture leaves its own stream current
            self._device.set_stream(main)
        return graph, outputs


@dataclass(eq=False)
class _Graphs:
    """Graphs by kind and layouts, with their inputs and outputs; calls without one; whether a capture failed."""

    by_key: dict[Hashable, tuple[Any, Sequence[Tensor], Sequence[Tensor]]] = field(default_factory=dict)
    calls: Counter[Hashable] = field(default_factory=Counter)
    failed: bool = False

    def forget(self) -> None:
        for graph, _, _ in self.by_key.values():
            graph.reset()
        self.by_key.clear()
        self.calls.clear()


class CapturedSteps:
    """Computes functions of a step on tensors by replaying a graph of each kind and shape.

    Only graphs of one view exist: views never shrink during a run, and graphs of the next replace those of the last.
    Everything that a step reads besides these tensors must stay at its address from step to step. The next graph may
    overwrite the outputs of the last. Functions with collectives have graphs on all ranks or on none, since NCCL
    requires it: the ranks agree on each capture.
    """

    def __init__(self, capturer: Capturer, value: str):
        """value: that of cuda_graphs, `on` or `require`."""
        self._capturer, self._value = capturer, value
        self.captures = self.count = 0
        self._changes, self._steps = _Graphs(), _Graphs()
        self._without, self._last_without = 0, 0
        self._view: int | None = None

    @property
    def replays(self) -> int:
        """The number of steps whose functions all replayed a graph."""
        return self.count - self._without

    def start_step(self, view: int) -> None:
        """Count a step, of a view."""
        self.count += 1
        if view != self._view:
            self.forget()
            self._view = view

    def change(self, changes: Changes, batch: Batch) -> Batch:
        """Return a batch after changes, which this rank captures alone."""

        def change(inputs: Tensor, targets: Tensor, packed: Tensor) -> Sequence[Tensor]:
            changed = changes.apply(replace(batch, inputs=inputs, targets=targets), packed)
            return changed.inputs, changed.targets

        tensors = batch.inputs, batch.targets, changes.packed
        inputs, targets = self._computed(self._changes, changes.kind, change, tensors)
        return replace(batch, inputs=inputs, targets=targets)

    def __call__(
        self, kind: Hashable, step: StepFunction, *tensors: Tensor, together: bool = False
    ) -> Sequence[Tensor]:
        """Return the outputs of a step for tensors; `kind` separates functions of equal shapes.

        together: it has collectives, and all ranks call it with tensors of equal layouts.
        """
        return self._computed(self._steps, kind, step, tensors, together)

    def _computed(
        self, graphs: _Graphs, kind: Hashable, step: StepFunction, tensors: Sequence[Tensor], together: bool = False
    ) -> Sequence[Tensor]:
        key = kind, *map(_layout, tensors)
        if key not in graphs.by_key and not graphs.failed:
            graphs.calls[key] += 1
            if graphs.calls[key] <= WARMUP_STEPS:
                with self._capturer.side_stream():
                    return self._run(step, tensors)
            self._capture(graphs, key, step, tensors, together)
        if graphs.failed:
            return self._run(step, tensors)
        graph, buffers, outputs = graphs.by_key[key]
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor)
        graph.replay()
        return outputs

    def _run(self, step: StepFunction, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        self._without += self._last_without != self.count
        self._last_without = self.count
        return step(*tensors)

    def _capture(
        self, graphs: _Graphs, key: Hashable, step: StepFunction, tensors: Sequence[Tensor], together: bool
    ) -> None:
        buffers, reason = [tensor.clone() for tensor in tensors], ""
        try:
            graph, outputs = self._capturer.capture(lambda: step(*buffers))
            graphs.by_key[key] = graph, buffers, outputs
        except RuntimeError as error:
            # note: ending a broken capture fails too, which hides what broke it
            reason = str(error.__context__ or error).partition("\n")[0]
        if together:
            reason = _reason_of_any(reason, key)
        if not reason:
            self.captures += 1
            return
        graphs.forget()
        graphs.failed = True
        self._capturer.new_pool()
        what = "batch preparation" if graphs is self._changes else "steps"
        if not together or dist.get_rank() == 0 or self._value == "require":
            train_without(self._value, reason, what)

    def summary(self) -> str:
        """Return how many graphs were captured, and how many of this start's steps replayed one."""
        steps = f"{self.replays} of {count_of(self.count, 'step')}"
        return f"cuda_graphs: captured {count_of(self.captures, 'graph')}, replayed in {steps}"

    def forget(self) -> None:
        """Drop all graphs, after a change of addresses or of the view."""
        self._changes.forget()
        self._steps.forget()
        self._capturer.new_pool()


def _reason_of_any(reason: str, key: Hashable) -> str:
    """Return why a rank has not captured a function; empty if all have, for the same kind and layouts."""
    everyone = gather((reason, str(key)))
    if len({of_rank for _, of_rank in everyone}) > 1:
        return "the batches of ranks have different layouts"
    return next((f"rank {rank}: {reason}" for rank, (reason, _) in enumerate(everyone) if reason), "")


def _layout(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype


def why_not_captured(ranks: Ranks, engine: Engine, optimizer: MaskedOptimizer) -> str | None:
    """Return why a run's steps cannot be captured, if so."""
    if not has_streams(ranks.device):
        return "they need a GPU"
    if changing := engine.changing_parameters:
        return f"{changing[0]} changes which parameters learn"
    if not optimizer.can_be_captured:
        return f"optimizer.name={optimizer.name} does not support capture"
    if ranks.world_size > 1 and not engine.alike_on_ranks:
        return "batches of ranks may have different layouts"
    return None


def train_without(value: str, reason: str, what: str = "steps") -> None:
    """Print why steps, or a part of them, are not captured.

    Raises UserError if the value of cuda_graphs is `require`.
    """
    if value == "require":
        raise UserError(Problem(f"cannot capture {what} ({reason}); set cuda_graphs=on", "cuda_graphs", value))
    print(f"cuda_graphs=on: not capturing {what} ({reason}); training without CUDA graphs", flush=True)
