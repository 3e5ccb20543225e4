"""Trace the calls of a training step with their bytes and operations, on tensors without values.

Nothing is computed and no GPU is needed; `fusion` turns calls into kernels, and `prediction` kernels into seconds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from launcher.prediction.meta_tensors import Shape, storage_of

# Kind of kernel, and the first letters of its calls' names; all others are elementwise.
_KINDS = {
    "convolution": ("convolution", "mkldnn_convolution"),
    "matmul": ("mm", "addmm", "bmm", "baddbmm"),
    "attention": ("_scaled_dot_product",),
    "eigenvectors": ("_linalg_eigh",),
    "qr": ("linalg_qr",),
    "batch norm": ("native_batch_norm", "_native_batch_norm", "cudnn_batch_norm", "_batch_norm"),
    "foreach": ("_foreach", "_fused", "_amp"),
    "pool": ("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool"),
    "reduction": ("sum", "mean", "var", "amax", "amin", "norm", "linalg_vector_norm", "_softmax", "_log_softmax"),
    "gather": (
        *("index", "_index", "gather", "scatter", "upsample", "_upsample"),
        *("sort", "topk", "nonzero", "grid_sampl"),
    ),
}
DECOMPOSITIONS = ("eigenvectors", "qr")
# Calls that overwrite their first argument without reading it, or read only its shape.
_UNREAD = {
    *("copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"),
    *("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"),
}
_TILE = (64, 64, 32)  # rows, columns, summed values: cuBLAS's smallest tile on matrix units
_NO_TILE = 4
_BURST = 64  # bytes of one transfer of GPU memory
_EMPTY = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"}


@dataclass(frozen=True)
class Call:
    """One call of ATen: bytes by storage, matrix operations (rows, of a decomposition), and the number of elements.

    `phase` is prepare, network (the forward pass, the loss and the backward pass) or update. `group_width`: channels
    that a grouped convolution sums over, 1 of a depthwise one, 0 of other calls. `aligned`: whether channels or matrix
    sizes are multiples of eight. `fill`: fraction of a matrix product's tiles that its sizes use. `strided`: whether it
    reads or writes a slice of a larger tensor, or joins tensors; memory then transfers `unused` bytes too.
    """

    name: str
    kind: str
    phase: str
    reads: dict[int, int]
    writes: dict[int, int]
    operations: int = 0
    elements: int = 0
    group_width: int = 0
    aligned: bool = True
    fill: float = 1.0
    strided: bool = False
    unused: int = 0


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient: its elements, and the number of calls before it was ready."""

    elements: int
    calls: int


class Trace(TorchDispatchMode):
    """A mode that records calls; reading a device value counts in `waits`, and reading a shape's value returns 1."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.waits = 0
        self.phase = "prepare"
        self._gradients: dict[int, Gradient] = {}
        self._alive: list[Any] = []  # note: keeps storages alive, since freed numbers are reused

    @property
    def gradients(self) -> list[Gradient]:
        """Return the gradients of the last backward pass, in the order in which they were ready."""
        return sorted(self._gradients.values(), key=lambda gradient: gradient.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.waits += 1
            if isinstance(args[0], Shape):
                return True if args[0].dtype is torch.bool else 1.0 if args[0].is_floating_point() else 1
        out = self.compute(func, args, kwargs or {})
        if (
            name != "_local_scalar_dense"
            and func.namespace not in ("prim", "profiler")
            and not func.is_view
            and name.removesuffix("_") not in _EMPTY
        ):
            self._record(func, name, args, kwargs or {}, out)
        return out

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the results of a call; overridden for real tensors."""
        return func(*args, **kwargs)

    def _record(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        signature = _signature_of(func)
        arguments = {**dict(zip(signature.names, args, strict=False)), **kwargs}
        reads, writes = _read(signature, name, arguments), _written(signature, name, arguments, out)
        self._alive += [reads, writes]
        kind, count = kind_of(name), flop_registry.get(func.overloadpacket)
        # note: batch norm counts batches, which are integers, in the network
        if kind == "foreach" and self.phase == "network" and _tensors([*args])[0].is_floating_point():
            self.phase = "update"
        over = reads if kind in ("reduction", "batch norm") else writes or reads
        operations = int(count(*args, **kwargs, out_val=out)) if count else 0
        if kind in DECOMPOSITIONS:
            operations = math.prod(_tensors([*args])[0].shape[:-1])
        if name == "convolution_backward":
            # note: PyTorch's own count ignores the groups in the gradient of a weight
            operations = sum(args[-1][:2]) * 2 * args[0].numel() * args[2][0].numel()
        elements = max((tensor.numel() for tensor in over), default=0)
        width = int(arguments["weight"].shape[1]) if arguments.get("groups", 1) > 1 else 0
        fill, moved = _fill(arguments) if kind == "matmul" else 1.0, [*reads, *writes]
        self.calls.append(
            Call(
                name, kind, self.phase, _by_storage(reads), _by_storage(writes), operations, elements, width,
                _aligned(kind, arguments), fill, _strided(name, moved), sum(map(_unused, moved)),
            )
        )  # fmt: skip

    def watch(self, network: nn.Module) -> Callable[[], None]:
        """Mark the calls of the network and the gradients as they become ready; return a function that stops this."""

        def enter(phase: str) -> Callable[..., None]:
            return lambda *_: setattr(self, "phase", phase)

        def ready(parameter: Tensor) -> None:
            self._gradients[id(parameter)] = Gradient(parameter.numel(), len(self.calls))

        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        hooks = [
            network.register_forward_pre_hook(enter("network")),
            register_optimizer_step_pre_hook(enter("update")),
            *(parameter.register_post_accumulate_grad_hook(ready) for parameter in parameters),
        ]

        def end() -> None:
            for hook in hooks:
                hook.remove()

        return end


def kind_of(name: str) -> str:
    """Return the kind of kernel for a call's name."""
    return next((kind for kind, prefixes in _KINDS.items() if name.startswith(prefixes)), "elementwise")


def _aligned(kind: str, arguments: dict[str, Any]) -> bool:
    """Return whether channels or matrix sizes are multiples of eight, as matrix units need in half precision."""
    if kind == "convolution":
        outputs, inputs = arguments["weight"].shape[:2]
        return all(channels % 8 == 0 for channels in (outputs, inputs * arguments.get("groups", 1)))
    sizes = [size for one in _tensors([*arguments.values()]) if one.ndim > 1 for size in one.shape[-2:]]
    return kind != "matmul" or all(size % 8 == 0 for size in sizes)


def _fill(arguments: dict[str, Any]) -> float:
    """Return the used fraction of a product's tiles; cuBLAS multiplies matrices of up to four columns without tiles."""
    first, second = [one for one in arguments.values() if isinstance(one, Tensor) and one.ndim > 1][-2:]
    (rows, inner), columns = first.shape[-2:], second.shape[-1]
    if min(rows, columns) <= _NO_TILE:
        return 1.0
    sizes = zip((rows, columns, inner), _TILE, strict=True)
    return float(math.prod(size / (math.ceil(size / tile) * tile) for size, tile in sizes))


def _strided(name: str, tensors: Sequence[Tensor]) -> bool:
    """Return whether a large operand has gaps between its values, or several tensors become one."""
    largest = max((tensor.numel() for tensor in tensors), default=0)
    return name in ("cat", "stack") or any(_run(one) for one in tensors if 2 * one.numel() >= largest)


def _run(tensor: Tensor) -> int:
    """Return the values that lie side by side in a tensor with gaps; 0 if there are no gaps, or repeated values."""
    if 0 in tensor.stride():
        return 0
    run = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride != run and size > 1:
            return run
        run *= size
    return 0


@dataclass(frozen=True)
class _Signature:
    """The names of a call's arguments, of the written ones and of the outputs; and which results are new."""

    names: tuple[str, ...]
    written: frozenset[str]
    outputs: tuple[str, ...]
    new: tuple[bool, ...]


@cache
def _signature_of(func: Any) -> _Signature:
    arguments = func._schema.arguments
    return _Signature(
        names=tuple(argument.name for argument in arguments),
        written=frozenset(a.name for a in arguments if a.alias_info and a.alias_info.is_write),
        outputs=tuple(argument.name for argument in arguments if argument.is_out),
        new=tuple(not one.alias_info for one in func._schema.returns),
    )


def _read(signature: _Signature, name: str, arguments: dict[str, Any]) -> list[Tensor]:
    """Return the tensors whose values a call reads."""
    unread = [*signature.outputs]
    if name in _UNREAD:
        unread.append("self")
    elif name == "convolution_backward":
        for_input, for_weight, _ = arguments["output_mask"]
        unread += [name for name, is_read in (("weight", for_input), ("input", for_weight)) if not is_read]
    return _tensors([value for argument, value in arguments.items() if argument not in unread])


def _written(signature: _Signature, name: str, arguments: dict[str, Any], out: Any) -> list[Tensor]:
    """Return the tensors that a call makes or changes in place."""
    changed = signature.written
    if name.startswith("_fused") and arguments.get("grad_scale") is None:
        changed -= {"grads"}
    returned = out if isinstance(out, tuple | list) and len(signature.new) > 1 else [out]
    created = [value for value, new in zip(returned, signature.new, strict=False) if new]
    return _tensors([created, *(arguments[name] for name in changed & arguments.keys())])


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, list | tuple):
        return [leaf for branch in tree for leaf in _tensors(branch)]
    return [tree] if isinstance(tree, Tensor) else []


def _unused(tensor: Tensor) -> int:
    """Return the bytes that memory transfers beside a tensor's: it moves whole bursts, also where values have gaps."""
    run = _run(tensor) * tensor.element_size()
    if not run:
        return 0
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    moved = min(tensor.numel() * math.ceil(run / _BURST) * _BURST / run, extent)
    return max(0, round(moved) - tensor.numel()) * tensor.element_size()


def _by_storage(tensors: Sequence[Tensor]) -> dict[int, int]:
    return {storage_of(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}
