"""A stand-in for CUDA graphs on CPUs: it records the operations of a capture, and repeats them without Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, Work
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass
class StandIn:
    """Captures functions; the capture changes no memory from before, and leaves nothing to read in its own."""

    captures: int = 0
    warmup_steps: int = 0
    dropped: list[int] = field(default_factory=list)
    pools: int = 0
    graphs: list[StandInGraph] = field(default_factory=list)

    def new_pool(self) -> None:
        self.pools += 1

    def side_stream(self) -> nullcontext[None]:
        self.warmup_steps += 1
        return nullcontext()

    def capture(self, function: Callable[[], Sequence[Tensor]]) -> tuple[StandInGraph, Sequence[Tensor]]:
        # note: a capture takes no random numbers; each replay draws as the step itself would
        with torch.random.fork_rng(), _Recorder() as recorder:
            outputs = function()
        recorder.undo()
        self.captures += 1
        self.graphs.append(StandInGraph(self, self.captures, recorder.calls))
        return self.graphs[-1], outputs


@dataclass(frozen=True)
class _Call:
    """An operation on tensors at their addresses, and its results in memory of the graph."""

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: Sequence[tuple[int, Tensor]]

    @property
    def is_collective(self) -> bool:
        return self.operation.namespace == "c10d"  # type: ignore[attr-defined]

    def repeat(self) -> None:
        outputs = self.operation(*self.arguments, **self.keywords)
        if self.is_collective:
            Work.unbox(outputs[1]).wait()
        results = _tensors(outputs)
        for number, memory in self.results:
            memory.copy_(results[number])


class _Recorder(TorchDispatchMode):
    """Records operations below autograd and autocast, with numbers and branches of the host as they are now."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self._own: dict[int, Tensor] = {}
        self._earlier: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}))
        if func.namespace == "c10d":
            # note: a capture sends nothing to other ranks
            self.calls.append(_Call(func, args, kwargs, []))
            return args[0], FakeWork().boxed()
        taken = {_address(tensor): tensor.untyped_storage() for tensor in _tensors((args, kwargs))}
        for address, storage in taken.items():
            if address not in self._own and address not in self._earlier:
                self._earlier[address] = storage, storage.clone()
        outputs = func(*args, **kwargs)
        new = [(i, one.detach()) for i, one in enumerate(_tensors(outputs)) if _address(one) not in taken]
        self._own.update((_address(tensor), tensor) for _, tensor in new)
        if new or not func.is_view:
            self.calls.append(_Call(func, args, kwargs, new))
        return outputs

    def undo(self) -> None:
        """Restore memory from before the capture; fill that of the graph with NaN where it can hold it."""
        for storage, before in self._earlier.values():
            storage.copy_(before)
        for tensor in self._own.values():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)


@dataclass
class StandInGraph:
    owner: StandIn
    number: int
    calls: Sequence[_Call]
    replaying: ClassVar[bool] = False

    def replay(self) -> None:
        StandInGraph.replaying = True
        with torch._C._AutoDispatchBelowAutograd():
            for call in self.calls:
                call.repeat()
        StandInGraph.replaying = False

    def reset(self) -> None:
        self.owner.dropped.append(self.number)


def _tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
