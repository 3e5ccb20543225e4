"""Compute the minimum work of a training step on a GPU: launches, synchronizations, bytes and operations.

    python -m benchmarks.floor --recipe none mild hot --batch 256 --json floor.json

The step is traced on tensors without values, so no GPU is needed; `launcher_lab.predict.trace`,
`launcher_lab.predict.fusion` and `benchmarks.roofline` define the counts. Each row has the eager and the compiled step;
the update is never compiled.
"""

import argparse
import itertools
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from benchmarks.peers import ComposerPeer, has_composer, peer_step
from benchmarks.roofline import all_reduce, minimum_seconds, traced
from benchmarks.step import CLASSES, words_of
from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.compose import compose
from launcher.config.gpus import gpus
from launcher.config.groups import options
from launcher.data.batch import Moment
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import common_acting, step_kinds
from launcher.rank.group import Ranks
from launcher.training.precision import Precision
from launcher.training.trainer import build_step
from launcher_lab.predict.fusion import Kernel, compiled_kernels, eager_kernels
from launcher_lab.predict.trace import Call, Gradient, Trace, kind_of

BF16 = Precision("cpu", torch.bfloat16)
PLAIN = "plain PyTorch loop"
# Bytes per number of each `launch.gradient_dtype`.
GRADIENTS = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Counts:
    """The sums over a step's kernels; times are in milliseconds by the name of the GPU.

    By gradient format, `all_reduce_ms` is the time of the all-reduce over all ranks, and `exposed_ms` the part of it
    that the backward pass does not hide.
    """

    launches: int
    gigabytes: float
    gigabytes_by_kind: dict[str, float]
    gigabytes_by_phase: dict[str, float]
    minimum_ms: dict[str, float]
    all_reduce_ms: dict[str, dict[str, float]]
    exposed_ms: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Floor:
    """One step of a contender: its image size in pixels, the algorithms that act only at some steps, and its counts."""

    contender: str
    size: int
    acting: str
    synchronizations: int
    teraoperations: float
    gradient_megabytes: float
    eager: Counts
    compiled: Counts


def counts(kernels: Sequence[Kernel], gradients: Sequence[Gradient], ranks: int) -> Counts:
    """Sum the kernels of a step on one rank of `ranks`."""
    kinds: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    for kernel in kernels:
        kinds[kernel.kind] += kernel.moved
        phases[kernel.phase] += kernel.moved
    all_reduces = {
        dtype: {name: all_reduce(kernels, gradients, gpu, ranks, size) for name, gpu in gpus().items()}
        for dtype, size in GRADIENTS.items()
    }
    return Counts(
        len(kernels),
        sum(kinds.values()) / 1e9,
        {kind: moved / 1e9 for kind, moved in kinds.items()},
        {phase: moved / 1e9 for phase, moved in phases.items()},
        {name: 1000 * minimum_seconds(kernels, gpu) for name, gpu in gpus().items()},
        {dtype: {name: 1000 * one.seconds for name, one in row.items()} for dtype, row in all_reduces.items()},
        {dtype: {name: 1000 * one.exposed for name, one in row.items()} for dtype, row in all_reduces.items()},
    )


def floor_of(
    contender: str, size: int, calls: Sequence[Call], synchronizations: int, gradients: Sequence[Gradient], ranks: int,
    acting: Sequence[str] = (),
) -> Floor:  # fmt: skip
    """Return the counts of a trace."""
    return Floor(
        contender, size, " ".join(acting), synchronizations,
        sum(call.operations for call in calls) / 1e12, sum(4 * gradient.elements for gradient in gradients) / 1e6,
        counts(eager_kernels(calls), gradients, ranks), counts(compiled_kernels(calls), gradients, ranks),
    )  # fmt: skip


def recipe_floors(
    name: str, model: str, batch: int, sizes: Sequence[int] | None, extra: Sequence[str], ranks: int
) -> list[Floor]:
    """Return the floors of our step at image sizes of the recipe's schedule; [] means all, None three of them.

    The largest size is also counted with the algorithms that act only at some steps, such as SAM.
    """
    words = [*words_of(name), *model_words(model), *extra, "dataset=imagenet", "dataloader=synthetic", "precision=bf16"]
    plan = Plan(compose(words).config, 1, 1_281_167)
    kinds = step_kinds(plan)
    usual = common_acting(kinds)
    known = sorted({kind.view for kind in kinds})
    chosen = known if sizes == [] else sizes or sorted({known[0], known[len(known) // 2], known[-1]})
    floors = []
    for kind in sorted(kinds):
        if kind.view in chosen and (kind.acting == usual or kind.view == chosen[-1]):
            trace = _traced_step(plan, kinds[kind][-1], batch)
            floors.append(floor_of(name, kind.view, trace.calls, trace.waits, trace.gradients, ranks, kind.acting))
    return floors


def _traced_step(plan: Plan, number: int, batch: int) -> Trace:
    """Trace step `number` of a run, on images as its loader makes them."""
    images, labels = _batch(plan.loaded_view(number), batch)
    step = build_step(plan, Ranks(0, 1, 0, 1, torch.device("cpu")), Engine(Context(plan, CLASSES)))
    moment = Moment(seed=0, epoch=0, step=number, total_steps=plan.total_steps)
    return traced(lambda: step(images, labels, np.arange(batch), moment), step.network)


def model_words(model: str) -> list[str]:
    """Return the command line of a network of conf/model, or else of timm."""
    return [f"model={model}"] if model in options("model") else ["model=timm", f"model.architecture={model}"]


def _network(model: str) -> nn.Module:
    """Build the network with its library."""
    network: nn.Module
    if model in options("model"):
        network = torchvision.models.get_model(model, weights=None, num_classes=CLASSES)
    else:
        import timm  # note: the import takes a second

        network = timm.create_model(model, num_classes=CLASSES)
    return network


def plain_floor(model: str, size: int, batch: int, ranks: int) -> Floor:
    """Return the floor of the plain PyTorch loop with the same model."""
    network = _network(model)
    trace = traced(peer_step(network, *_batch(size, batch), BF16), network)
    return floor_of(PLAIN, size, trace.calls, trace.waits, trace.gradients, ranks)


def composer_floor(recipe: str, model: str, size: int, batch: int, ranks: int) -> Floor:
    """Return the floor of Composer's second step with the recipe's algorithms.

    Its trainer needs values: steps of 2 and 4 images are computed, and their counts are extrapolated linearly.
    """
    (few, _), (more, waits) = (_composer_calls(recipe, model, size, images) for images in (2, 4))
    calls = [at_batch(one, other, 2, 4, batch) for one, other in zip(few, more, strict=True)]
    return floor_of(f"Composer, {recipe}", size, calls, waits, [], ranks)


def at_batch(few: Call, more: Call, low: int, high: int, batch: int) -> Call:
    """Extrapolate a call linearly from the batch sizes `low` and `high` to another one."""

    def grown(one: int, other: int) -> int:
        return one + (other - one) * (batch - low) // (high - low)

    def by_storage(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
        return dict(zip(other, map(grown, one.values(), other.values()), strict=True))

    operations, elements = grown(few.operations, more.operations), grown(few.elements, more.elements)
    reads, writes = by_storage(few.reads, more.reads), by_storage(few.writes, more.writes)
    return Call(more.name, more.kind, more.phase, reads, writes, operations, elements)


class _WithoutProducts(Trace):
    """A trace on real tensors whose convolutions return zeros of the right shape, since no value is read."""

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kind_of(func.overloadpacket.__name__) != "convolution":
            return func(*args, **kwargs)
        shapes = func(*tree_map(lambda value: value.to("meta") if isinstance(value, Tensor) else value, args), **kwargs)
        return tree_map(lambda like: torch.zeros_like(like, device="cpu") if isinstance(like, Tensor) else like, shapes)


def _composer_calls(recipe: str, model: str, size: int, images: int) -> tuple[list[Call], int]:
    """Return the calls and the number of synchronizations from one batch to the next."""
    network = _network(model)
    peer = ComposerPeer(recipe, network, CLASSES, *_batch(size, images), BF16)
    trace, marks = _WithoutProducts(), []

    def fetched() -> None:
        trace.phase = "prepare"
        marks.append((len(trace.calls), trace.waits))

    peer.batches.fetched = fetched
    end = trace.watch(peer.model)
    with trace:
        peer(3)
    end()
    (first, waited), (last, waits) = marks[1:3]
    return trace.calls[first:last], waits - waited


def _batch(size: int, batch: int) -> tuple[Tensor, Tensor]:
    pixels = torch.empty(batch, size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    return pixels, torch.zeros(batch, dtype=torch.int64)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    warnings.filterwarnings("ignore")
    model, batch, ranks = arguments.model, arguments.batch, arguments.gpus
    floors: list[Floor] = []
    for recipe in arguments.recipe:
        floors += recipe_floors(
            recipe, model, batch, [] if arguments.every_size else arguments.sizes, arguments.set, ranks
        )
    sizes = sorted({floor.size for floor in floors})
    if not arguments.every_size:
        floors += [plain_floor(model, size, batch, ranks) for size in sizes]
        if has_composer():
            floors += [composer_floor(recipe, model, sizes[-1], batch, ranks) for recipe in arguments.recipe]
    console = Console(width=200)
    console.print(table(floors))
    console.print(
        ranks_table([floor for floor in floors if floor.size == sizes[-1] and floor.gradient_megabytes], ranks)
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(floor) for floor in floors], indent=2) + "\n")
    return 0


def table(floors: Sequence[Floor]) -> Table:
    """Return one row per step: each count eager and compiled, then the minimum milliseconds on each GPU."""
    heads = ["step", "px", "acting", "synchronizations", "launches", "GB", "TFLOP", *gpus()]
    shown = Table(*heads, box=None, header_style="bold")
    for floor in floors:
        eager, compiled = floor.eager, floor.compiled
        times = (f"{eager.minimum_ms[name]:.1f} {compiled.minimum_ms[name]:.1f}" for name in gpus())
        launches, moved = f"{eager.launches} {compiled.launches}", f"{eager.gigabytes:.1f} {compiled.gigabytes:.1f}"
        step = (floor.contender, str(floor.size), floor.acting, str(floor.synchronizations))
        shown.add_row(*step, launches, moved, f"{floor.teraoperations:.2f}", *times)
    return shown


def ranks_table(floors: Sequence[Floor], ranks: int) -> Table:
    """Return milliseconds of the compiled step's all-reduce, those that are not hidden, and the scaling."""
    heads = ["step", "gradients", "MB", *gpus()]
    shown = Table(*heads, box=None, header_style="bold", title=f"all-reduce over {ranks} GPUs")
    for floor, (dtype, size) in itertools.product(floors, GRADIENTS.items()):
        step, whole, exposed = floor.compiled, floor.compiled.all_reduce_ms[dtype], floor.compiled.exposed_ms[dtype]
        times = (
            f"{whole[name]:.1f} {exposed[name]:.2f} "
            f"{ranks * step.minimum_ms[name] / (step.minimum_ms[name] + exposed[name]):.2f}x"
            for name in gpus()
        )
        shown.add_row(floor.contender, dtype, f"{floor.gradient_megabytes * size / 4:.0f}", *times)
    return shown


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count the minimum work of a training step, without a GPU.")
    parser.add_argument("--recipe", nargs="+", default=["mild"], help="none has only channels last")
    parser.add_argument("--model", default="resnet50", help="a model of conf/model or of timm")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs="+", metavar="PX", help="image sizes of the recipe's schedule")
    parser.add_argument("--every-size", action="store_true", help="all image sizes of the schedule, without the peers")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="GPUs that reduce gradients")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further values of the run")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
