"""What a training step must do at least on a GPU: calls, waits, bytes and operations, counted on fake tensors.

    python -m benchmarks.floor --recipe mild --batch 256 --json floor.json

Nothing is computed and no GPU is needed. A call of ATen that is no view reads its inputs and writes its outputs once.
Fused, a run of calls in a row that work element by element is one kernel: it reads what was made before it and writes
what is read after it; batch norm joins such a run and reads its inputs once more, for its sums.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.step import CLASSES, peer_step
from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.compose import compose
from launcher.config.hardware import gpus
from launcher.data.batch import Moment
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import common_acting, step_kinds
from launcher.rank.group import Ranks
from launcher.training.precision import Precision
from launcher.training.trainer import build_step

_MATRIX = {"convolution", "convolution_backward", "mm", "addmm", "bmm"}
_NORM = {"native_batch_norm", "_native_batch_norm_legit", "native_batch_norm_backward", "_batch_norm_with_update"}
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"}
_NOT_FUSED = {"pool", "upsample", "index", "gather", "scatter", "sort", "sum", "mean", "var"}


@dataclass(frozen=True)
class Call:
    """One kernel: `reads` and `writes` are bytes by storage."""

    name: str
    kind: str
    operations: int
    reads: dict[int, int]
    writes: dict[int, int]


@dataclass(frozen=True)
class Floor:
    """A step's counts; the least milliseconds by bandwidth and by matrix rate, whichever is longer, on each GPU."""

    contender: str
    size: int
    calls: int
    waits: int
    gigabytes: float
    fused_gigabytes: float
    teraoperations: float
    gigabytes_by_kind: dict[str, float]
    least_ms: dict[str, float]
    fused_least_ms: dict[str, float]


class Trace(TorchDispatchMode):
    """Records the kernels below it; a read of a device value is counted, and answered with 1."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.waits = 0
        self._kept: list[Any] = []  # note: a freed storage's number would be given to another

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.waits += 1
            return True if args[0].dtype is torch.bool else 1.0 if args[0].is_floating_point() else 1
        out = func(*args, **(kwargs or {}))
        if func.namespace != "prim" and not func.is_view and name.removesuffix("_") not in _EMPTY:
            self._record(func, name, args, kwargs or {}, out)
        return out

    def _record(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        reads, writes = ([t for t in tree_leaves(tree) if isinstance(t, Tensor)] for tree in ((args, kwargs), out))
        self._kept += [reads, writes]
        count = flop_registry.get(func.overloadpacket)
        operations = int(count(*args, **kwargs, out_val=out)) if count else 0
        written = _by_storage(writes) if writes or not func._schema.is_mutable else _by_storage(args[0])
        self.calls.append(Call(name, self._kind(name), operations, _by_storage(reads), written))

    def _kind(self, name: str) -> str:
        if name in _MATRIX:
            return "convolution"
        if name in _NORM:
            return "batch norm"
        if name.startswith(("_foreach", "_fused")):
            return "optimizer"
        begun = any(call.kind == "convolution" for call in self.calls)
        return "elementwise" if begun else "augmentation"


def _by_storage(tensors: Sequence[Tensor]) -> dict[int, int]:
    return {tensor.untyped_storage()._cdata: tensor.numel() * tensor.element_size() for tensor in tensors}


def traced(step: Callable[[], object]) -> Trace:
    """The second step, since the first one makes the optimizer's state."""
    # note: weights are real, as a module of fake ones cannot be moved; nothing is computed with them all the same
    with FakeTensorMode(allow_non_fake_inputs=True):
        with Trace():
            step()
        trace = Trace()
        with trace:
            step()
    return trace


def eager_bytes(calls: Sequence[Call]) -> int:
    return sum(sum(call.reads.values()) + sum(call.writes.values()) for call in calls)


def fused_bytes(calls: Sequence[Call]) -> int:
    """Bytes if runs of calls that work element by element were one kernel each."""
    last_read = {storage: number for number, call in enumerate(calls) for storage in call.reads}
    total, start = 0, 0
    for number in range(1, len(calls) + 1):
        if number < len(calls) and _fuses(calls[number]) and _fuses(calls[start]):
            continue
        total += _of_kernel(calls[start:number], number - 1, last_read)
        start = number
    return total


def _fuses(call: Call) -> bool:
    return call.kind != "convolution" and not any(part in call.name for part in _NOT_FUSED)


def _of_kernel(run: Sequence[Call], end: int, last_read: dict[int, int]) -> int:
    made: dict[int, int] = {}
    read: dict[int, int] = {}
    again = 0
    for call in run:
        read |= {storage: size for storage, size in call.reads.items() if storage not in made and storage not in read}
        made |= call.writes
        again += max(call.reads.values(), default=0) * (call.kind == "batch norm")
    # note: what is never read again by this step, weights for one, is kept if it was there before the kernel
    written = (size for storage, size in made.items() if last_read.get(storage, -1) > end or storage in read)
    return sum(read.values()) + sum(written) + again


def floor_of(contender: str, size: int, trace: Trace) -> Floor:
    """Add up a trace."""
    eager, fused = eager_bytes(trace.calls), fused_bytes(trace.calls)
    operations = sum(call.operations for call in trace.calls)
    by_kind: Counter[str] = Counter()
    for call in trace.calls:
        by_kind[call.kind] += eager_bytes([call])

    def least(moved: int) -> dict[str, float]:
        times = {n: max(moved / gpu.bandwidth / 1e9, operations / gpu.matrix_rate / 1e12) for n, gpu in gpus().items()}
        return {name: 1000 * seconds for name, seconds in times.items()}

    return Floor(
        contender, size, len(trace.calls), trace.waits, eager / 1e9, fused / 1e9, operations / 1e12,
        {kind: moved / 1e9 for kind, moved in by_kind.items()}, least(eager), least(fused),
    )  # fmt: skip


def recipe_floors(words: list[str], name: str, batch: int, sides: Sequence[int] | None) -> list[Floor]:
    """Our step at sides of its schedule, with its usual methods: smallest, middle and largest if none are named."""
    plan = Plan(compose([*words, "dataset=imagenet", "dataloader=synthetic"]).config, 1, 1_281_167)
    kinds = step_kinds(plan)
    usual = {kind.image_size: steps for kind, steps in kinds.items() if kind.acting == common_acting(kinds)}
    known = sorted(usual)
    chosen = sides or sorted({known[0], known[len(known) // 2], known[-1]})
    floors = []
    for side in chosen:
        images, labels = _batch(plan.config.image.train_size, batch)
        step = build_step(plan, Ranks(0, 1, 0, 1, torch.device("cpu")), Engine(Context(plan, CLASSES)))
        step.precision = Precision("cpu", torch.bfloat16)
        moment = Moment(seed=0, epoch=0, step=usual[side][-1], total_steps=plan.total_steps)
        trace = traced(lambda step=step, m=moment, i=images, t=labels: step(i, t, np.arange(batch), m))  # type: ignore[misc]
        floors.append(floor_of(name, side, trace))
    return floors


def plain_floor(model: str, size: int, batch: int) -> Floor:
    """The plain PyTorch loop with the same model."""
    network = torchvision.models.get_model(model, weights=None, num_classes=CLASSES)
    step = peer_step(network, *_batch(size, batch), Precision("cpu", torch.bfloat16))
    return floor_of("plain PyTorch loop", size, traced(step))


def _batch(size: int, batch: int) -> tuple[Tensor, Tensor]:
    pixels = torch.empty(batch, size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    return pixels, torch.zeros(batch, dtype=torch.int64)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count what a training step must do at least, without a GPU.")
    parser.add_argument("--recipe", nargs="+", default=["mild"])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--sides", type=int, nargs="+", metavar="PX")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args(words)
    warnings.filterwarnings("ignore", module="torch")
    floors: list[Floor] = []
    for recipe in arguments.recipe:
        model = [f"recipe={recipe}", f"model={arguments.model}"]
        floors += recipe_floors(model, recipe, arguments.batch, arguments.sides)
    floors += [plain_floor(arguments.model, size, arguments.batch) for size in sorted({floor.size for floor in floors})]
    console = Console(width=200)
    console.print(table(floors))
    if find_spec("composer") is None:
        console.print("Composer left out: it is not installed")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(floor) for floor in floors], indent=2) + "\n")
    return 0


def table(floors: Sequence[Floor]) -> Table:
    """A row a step; milliseconds eager and fused of each GPU."""
    heads = ["step", "px", "calls", "waits", "GB", "GB fused", "TFLOP", *(name.split(" ")[0] for name in gpus())]
    shown = Table(*heads, box=None, header_style="bold")
    for floor in floors:
        times = (f"{floor.least_ms[name]:.1f} {floor.fused_least_ms[name]:.1f}" for name in gpus())
        counts = (str(floor.size), str(floor.calls), str(floor.waits))
        moved = (f"{floor.gigabytes:.1f}", f"{floor.fused_gigabytes:.1f}", f"{floor.teraoperations:.2f}")
        shown.add_row(floor.contender, *counts, *moved, *times)
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
