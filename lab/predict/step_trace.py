"""The real step of a config, traced without values at its real size, as counts that need no torch to be read."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from lab.predict.fusion import Kernel, compiled_kernels, eager_kernels
from lab.predict.meta_tensors import nothing_computed
from lab.predict.step_counts import CountedStep, Work
from lab.predict.trace import Call, Trace
from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.data.batch import Moment
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepSample
from launcher.rank.group import Ranks
from launcher.training.precision import Precision
from launcher.training.trainer import build_step

# Kind of kernel -> that of its work; the others are all alike.
_WORKS = {"matmul": "matrix", "attention": "matrix", "batch norm": "batch norm", "pool": "pool"}
_BACKWARD = "convolution_backward"
# What autocast computes in float32 on a GPU and leaves as it is on a CPU: norms of layers and what grows by adding up.
_FLOAT32 = {
    *("layer_norm", "group_norm", "norm", "softmax", "log_softmax", "cross_entropy", "sum", "prod", "cumsum", "pow"),
    *("__pow__", "exp", "log", "rsqrt", "reciprocal", "softplus", "binary_cross_entropy_with_logits", "normalize"),
}


def trace_steps(plan: Plan, samples: Sequence[StepSample]) -> list[CountedStep]:
    """One step of each sample on a rank; nothing is computed, and weights are made once."""
    warnings.filterwarnings("ignore")
    config = plan.config
    plan = replace(plan, config=replace(config, precision="fp32", compile="off", cuda_graphs="off"))
    assert config.dataset.classes is not None
    step = build_step(plan, Ranks(0, 1, 0, 1, torch.device("cpu")), Engine(Context(plan, config.dataset.classes)))
    if config.precision != "fp32":
        # note: which half precision it is changes neither bytes nor operations, and a CPU traces bf16 alone; of small
        # images it would compute wrong gradients in it, for which a config with bf16 is refused there
        step.precision = Precision("cpu", torch.bfloat16)
        step.objective.autocast = _as_on_a_gpu

    def take(sample: StepSample) -> None:
        number = sample.steps[-1]
        images, labels = _batch(plan, number)
        moment = Moment(seed=0, epoch=0, step=number, total_steps=plan.total_steps)
        step(images, labels, np.arange(plan.rank_batch), moment)

    def count(sample: StepSample) -> CountedStep:
        trace = Trace()
        end = trace.watch(step.network)
        with trace:
            take(sample)
        end()
        return _counted(sample, trace)

    with nothing_computed():
        # note: the first update makes the optimizer's state
        take(samples[0])
        return [count(sample) for sample in samples]


class _Float32(TorchFunctionMode):
    """Casts half precision to float32 before what a GPU's autocast computes in it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _FLOAT32:
            args, kwargs = tree_map_only(Tensor, _widened, (args, kwargs))
        return func(*args, **kwargs)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Autocast on a CPU, with the types that it has on a GPU."""
    with torch.autocast("cpu", torch.bfloat16), _Float32():
        yield


def _batch(plan: Plan, number: int) -> tuple[Tensor, Tensor]:
    side = plan.loaded_size(number)
    pixels = torch.empty(plan.rank_batch, side, side, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    return pixels, torch.zeros(plan.rank_batch, dtype=torch.int64)


def _counted(sample: StepSample, trace: Trace) -> CountedStep:
    calls = [part for call in trace.calls for part in _halves(call)]
    return CountedStep(
        image_size=sample.kind.image_size,
        acting=sample.kind.acting,
        eager=_works(eager_kernels(calls), calls),
        fused=_works(compiled_kernels(calls), calls),
        gradient_bytes=sum(4 * gradient.elements for gradient in trace.gradients),
        peak_bytes=_peak(trace.calls),
    )


def _halves(call: Call) -> Iterator[Call]:
    """A convolution's backward pass as its two kernels: the gradients of its input, and of its weight."""
    reads, writes = list(call.reads.items()), list(call.writes.items())
    if call.name != _BACKWARD or len(writes) < 2 or len(reads) < 3:
        yield call
        return
    half = call.operations // 2
    yield replace(
        call, name=_BACKWARD + ".data", reads=dict([reads[0], reads[2]]), writes=dict(writes[:1]), operations=half
    )
    yield replace(call, name=_BACKWARD + ".weight", reads=dict(reads[:2]), writes=dict(writes[1:]), operations=half)


def _works(kernels: Sequence[Kernel], calls: Sequence[Call]) -> list[Work]:
    """Kernels of one kind that move and compute the same, counted."""
    found = Counter(_work(kernel, calls[kernel.last_call]) for kernel in kernels)
    return [replace(work, count=count) for work, count in found.items()]


def _work(kernel: Kernel, call: Call) -> Work:
    kind = _WORKS.get(kernel.kind, "strided" if call.strided else "other")
    if kernel.kind == "convolution":
        kind = "depthwise" if call.group_width == 1 else "convolution"
    return Work(kind, kernel.moved + call.unused, kernel.operations, 1, call.group_width, call.aligned, call.fill)


def _peak(calls: Iterable[Call]) -> int:
    """The most bytes alive at once: a storage lives from its first write to its last use, or always if it was there."""
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}
    for number, call in enumerate(calls):
        for storage, moved in (*call.reads.items(), *call.writes.items()):
            size[storage] = max(size.get(storage, 0), moved)
            last[storage] = number
            born.setdefault(storage, number if storage in call.writes and storage not in call.reads else -1)
    change: Counter[int] = Counter()
    for storage, first in born.items():
        change[first] += size[storage]
        if first >= 0:
            change[last[storage] + 1] -= size[storage]
    alive = most = 0
    for number in sorted(change):
        alive += change[number]
        most = max(most, alive)
    return most
