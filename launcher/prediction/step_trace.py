"""Trace the step of a config at its real size on tensors without values; the counts can be read without torch."""

import itertools
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

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.targets import reason
from launcher.data.batch import Moment
from launcher.errors import Problem, UserError
from launcher.plan.counted import CountedStep, Work
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepSample
from launcher.prediction.fusion import Kernel, compiled_kernels, eager_kernels
from launcher.prediction.meta_tensors import nothing_computed
from launcher.prediction.trace import DECOMPOSITIONS, Call, Trace
from launcher.rank.group import Ranks
from launcher.training.networks import teacher_of
from launcher.training.precision import Precision
from launcher.training.trainer import build_step
from launcher.weights.teacher import find_teacher

# Kind of kernel -> its kind in the counts; all others count as `other`.
_WORKS = {"matmul": "matrix", "attention": "matrix", **{kind: kind for kind in ("batch norm", "pool", *DECOMPOSITIONS)}}
_BACKWARD = "convolution_backward"
# Calls that autocast computes in float32 on a GPU but not on a CPU: layer norms, softmax and sums.
_FLOAT32 = {
    *("layer_norm", "group_norm", "norm", "softmax", "log_softmax", "cross_entropy", "sum", "prod", "cumsum", "pow"),
    *("__pow__", "exp", "log", "rsqrt", "reciprocal", "softplus", "binary_cross_entropy_with_logits", "normalize"),
}


def trace_steps(plan: Plan, samples: Sequence[StepSample]) -> list[CountedStep]:
    """Trace one step of each sample on a rank; weights are made once, and nothing is computed."""
    warnings.filterwarnings("ignore")
    config = plan.config
    plan = replace(plan, config=replace(config, precision="fp32", compile="off", cuda_graphs="off"))
    teacher = None
    if config.algorithms.teaching:
        teacher = teacher_of(find_teacher(config, with_weights=False)[1])
    context = Context(plan, config.task.outputs(config.dataset), teacher=teacher)
    step = build_step(plan, Ranks(0, 1, 0, 1, torch.device("cpu")), Engine(context))
    if config.precision != "fp32":
        # note: fp16 and bf16 have the same bytes and operations, and a CPU traces only bf16; a config with bf16 and
        # small images is refused on a CPU, because its gradients would be wrong
        step.precision = Precision("cpu", torch.bfloat16)
        step.objective.autocast = _as_on_a_gpu

    def take(sample: StepSample) -> None:
        number = sample.steps[-1]
        inputs, labels = step.task.blank(plan.rank_batch, plan.loaded_size(number), torch.device("cpu"))
        moment = Moment(seed=0, epoch=0, step=number, total_steps=plan.total_steps)
        step(inputs, labels, np.arange(plan.rank_batch), moment)
        step.engine.after_step(step.model, moment)

    def count(sample: StepSample) -> CountedStep:
        trace = Trace()
        end = trace.watch(step.objective)
        with trace:
            take(sample)
        end()
        return _counted(sample, trace)

    try:
        with nothing_computed(), _FusedAttention():
            # note: the first update creates the optimizer's state
            take(samples[0])
            return [count(sample) for sample in samples]
    except Exception as error:
        # note: a `_target_` that fails is one line already
        cause = error.__cause__ if isinstance(error, UserError) else error
        if not config.code or not isinstance(cause, Exception):
            raise
        message = f"cannot be counted, because tensors have no values here: {reason(cause)}; train estimate measures it"
        raise UserError(Problem(message, "code", config.code)) from error


class _FusedAttention(TorchFunctionMode):
    """Trace attention without dropout: a GPU draws it within the fused kernel, a CPU would need another one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fused = getattr(func, "__name__", "") == "scaled_dot_product_attention"
        return func(*args, **{**(kwargs or {}), **({"dropout_p": 0.0} if fused else {})})


class _Float32(TorchFunctionMode):
    """Cast half precision to float32 where the autocast of a GPU does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _FLOAT32:
            args, kwargs = tree_map_only(
                Tensor, lambda x: x.float() if x.dtype == torch.bfloat16 else x, (args, kwargs)
            )
        return func(*args, **kwargs)


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Autocast on a CPU with the types of a GPU."""
    with torch.autocast("cpu", torch.bfloat16), _Float32():
        yield


def _counted(sample: StepSample, trace: Trace) -> CountedStep:
    calls = [part for call in trace.calls for part in _halves(call)]
    eager, fused = _works(eager_kernels(calls), calls), _works(compiled_kernels(calls), calls)
    gradient_bytes = sum(4 * gradient.elements for gradient in trace.gradients)
    return CountedStep(sample.kind.view, sample.kind.acting, eager, fused, gradient_bytes, _peak(trace.calls))


def _halves(call: Call) -> Iterator[Call]:
    """Split a convolution's backward pass into its two kernels: the gradients of input and weight."""
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
    """Count kernels of one kind with equal bytes and operations."""
    counts = Counter(_work(kernel, calls[kernel.last_call]) for kernel in kernels)
    return [replace(work, count=count) for work, count in counts.items()]


def _work(kernel: Kernel, call: Call) -> Work:
    kind = _WORKS.get(kernel.kind, "strided" if call.strided else "other")
    if kernel.kind == "convolution":
        kind = "depthwise" if call.group_width == 1 else "convolution"
    return Work(kind, kernel.moved + call.unused, kernel.operations, 1, call.group_width, call.aligned, call.fill)


def _peak(calls: Iterable[Call]) -> int:
    """Return the peak bytes: a storage lives from its first write to its last use; earlier storages live throughout."""
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
    return max(itertools.accumulate(change[number] for number in sorted(change)), default=0)
