"""Measure the throughput of a recipe's training step beside a plain PyTorch loop, timm's ResNet and Composer.

    python -m benchmarks.step --recipe mild --sizes 128 176 224 --batch 256 --launch compiled --json step.json

All contenders train on the same uint8 images, which are already on the device, and alternate in one process; results
are medians. Composer is included if it is installed. A contender that cannot run is skipped with the reason.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.peers import ComposerPeer, Steps, has_composer, peer_step, repeat
from benchmarks.result import Result
from launcher.config.compose import compose
from launcher.errors import Problem, UserError, one_line
from launcher.files import atomic
from launcher.plan.step_kinds import step_kinds
from launcher.rank.group import Ranks
from launcher.training.compiled import compile_run
from launcher.training.precision import Precision
from launcher.training.trainer import build_trainer
from launcher.training.worker import capture_run

CLASSES = 1000
PLAIN, EAGER = "plain PyTorch loop", "eager"


@dataclass(frozen=True)
class StepResult(Result):
    """replays: the steps that replayed a CUDA graph, those of the warmup included."""

    replays: int


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    device = torch.device(arguments.device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[arguments.precision]
    precision = Precision(device.type, dtype)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    results: list[StepResult] = []
    facts = {"arguments": {**vars(arguments), "json": None}, "machine": machine(device)}
    for size in arguments.sizes:
        steps_of = contenders(
            arguments.recipe, arguments.model, size, arguments.batch, device, precision, arguments.launch,
            arguments.build_seconds,
        )  # fmt: skip
        steps = _steps_in(arguments.seconds, steps_of, device)
        for rows in measure(
            steps_of, size=size, batch=arguments.batch, steps=steps, repeats=arguments.repeats, device=device
        ):
            if arguments.json:  # note: after each round, since a time limit may end the process
                text = json.dumps({**facts, "results": list(map(asdict, [*results, *rows]))}, indent=2) + "\n"
                atomic.write_text(Path(arguments.json), text)
        results += rows
        Console().print(table(rows))
    return 0


def _steps_in(seconds: float, steps_of: dict[str, Steps], device: torch.device) -> int:
    """Return how many steps of the slowest contender fit in a measurement."""
    slowest = max(_seconds(steps, 1, device) for steps in steps_of.values())
    return min(max(round(seconds / slowest), 1), 50)


def contenders(
    recipe: str,
    model: str,
    size: int,
    batch: int,
    device: torch.device,
    precision: Precision,
    launched: str = EAGER,
    seconds: float = math.inf,
) -> dict[str, Steps]:
    """Return each contender's name, and a function that trains a number of steps.

    launched: eager, graphs (the recipe's step as a CUDA graph too) or compiled (all of these, and compiled).
    seconds: as for `built_in_time`.
    """
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (batch, size, size, 3), dtype=np.uint8))
    images = pixels.permute(0, 3, 1, 2).to(device)
    labels = torch.from_numpy(random.integers(0, CLASSES, batch)).to(device)
    base, one_size = [f"model={model}"], ["algorithms.progressive_resizing=off", f"image.train_size={size}"]

    def ours(name: str, *words: str, at: int | None = None) -> Callable[[], Steps]:
        return lambda: OurStep([*words_of(name), *base, *words], images, labels, precision, at)

    def peer(build: Callable[[], nn.Module], fused: bool = False, **compile_words: Any) -> Callable[[], Steps]:
        return lambda: repeat(peer_step(build(), images, labels, precision, fused=fused, compile_words=compile_words))

    def torchvisions() -> nn.Module:
        network: nn.Module = torchvision.models.get_model(model, weights=None, num_classes=CLASSES)
        return network

    def timms() -> nn.Module:
        network: nn.Module = timm.create_model(model, num_classes=CLASSES)
        return network

    builders = {f"recipe {recipe}": ours(recipe, *one_size), PLAIN: peer(torchvisions)}
    if launched == EAGER:
        builders["plain recipe-free step"] = ours("none", *one_size)
        builders[f"{PLAIN}, fused SGD"] = peer(torchvisions, fused=True)
        builders["timm model, same loop"] = peer(timms)
    else:
        builders[f"recipe {recipe}, captured"] = ours(recipe, *one_size, "cuda_graphs=require")
    if launched == EAGER and has_composer():
        builders[f"Composer, {recipe}"] = lambda: ComposerPeer(
            recipe, torchvisions(), CLASSES, images, labels, precision
        )
    if launched == "compiled":
        builders |= {
            f"recipe {recipe}, compiled": ours(recipe, *one_size, "compile=require"),
            f"recipe {recipe}, compiled and captured": ours(
                recipe, *one_size, "compile=require", "cuda_graphs=require"
            ),
            f"{PLAIN}, compiled": peer(torchvisions, dynamic=None),
            f"{PLAIN}, compiled for one size, fused SGD": peer(torchvisions, fused=True, dynamic=False),
            f"recipe {recipe}, compiled for all sizes": ours(recipe, "compile=require", at=size),
            "timm model, same loop, compiled for one size": peer(timms, dynamic=False),
        }
    return built_in_time(builders, seconds)


def built_in_time(builders: dict[str, Callable[[], Steps]], seconds: float) -> dict[str, Steps]:
    """Build the contenders that can run, in order; after that many seconds start no other, once there is one."""
    start, steps_of = time.monotonic(), dict[str, Steps]()
    for name, build in builders.items():
        if steps_of and time.monotonic() - start > seconds:
            print(f"skipped {name}: the others took more than --build-seconds={seconds:g}")
        elif (steps := _built(name, build)) is not None:
            steps_of[name] = steps
    return steps_of


def _built(name: str, build: Callable[[], Steps]) -> Steps | None:
    """Build a contender; print the reason and return None if it cannot run."""
    try:
        steps = build()
        steps(1)
    except (UserError, RuntimeError) as error:
        print(f"skipped {name}: {one_line(str(error))[:300]}")
        return None
    return steps


def words_of(recipe: str) -> list[str]:
    """Return the command line of a recipe; `none` has only channels last."""
    return ["algorithms=[channels_last]"] if recipe == "none" else [f"recipe={recipe}"]


class OurStep:
    """The training step of a command line on fixed images uint8 [B, 3, H, W], as a run compiles and captures it.

    size: train at steps of this image size, by default at those after the warmup.

    Raises:
        UserError: the run has no step of that size, or cannot be compiled or captured as its words require.
    """

    def __init__(
        self, words: Sequence[str], images: Tensor, labels: Tensor, precision: Precision, size: int | None = None
    ):
        number = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[precision.dtype]
        # note: 1,000 steps per epoch, since a plan goes through all steps, and small batches make millions
        samples = f"dataset.train_samples={1000 * len(images)}"
        data = ["dataset=imagenet", "dataset.path=/", "dataloader=synthetic", samples]
        batch = [f"batch_size={len(images)}", f"eval_batch_size={len(images)}", f"precision={number}"]
        config = compose([*data, *words, *batch]).config
        self._run = run = build_trainer(config, Ranks(0, 1, 0, 1, images.device))
        starts = {run.plan.view(steps[0]): steps[0] for steps in step_kinds(run.plan).values()}
        if size is not None and size not in starts:
            raise UserError(Problem(f"no step of this run trains at {size} px", "image.train_size", run.plan.full_view))
        compile_run(run)
        capture_run(run)
        run.next_step = run.plan.warmup_steps if size is None else starts[size]
        self._images, self._labels = images, labels

    def __call__(self, count: int) -> None:
        for _ in range(count):
            indices = np.arange(len(self._images))
            self._run.train_step(self._images, self._labels, indices, self._run.moment(self._run.next_step))
            self._run.next_step += 1

    @property
    def replays(self) -> int:
        """How many steps were replays of a CUDA graph."""
        captured = self._run.train_step.captured
        return captured.replays if captured else 0


def measure(
    steps_of: dict[str, Steps], *, size: int, batch: int, steps: int, repeats: int, device: torch.device
) -> Iterator[list[StepResult]]:
    """Time each contender in alternation, `repeats` times, after a warmup of `steps` steps.

    Yields the results so far after each round.
    """
    throughput: dict[str, list[float]] = {name: [] for name in steps_of}
    for step in steps_of.values():
        _seconds(step, steps, device)
    for _ in range(repeats):
        for name, step in steps_of.items():
            throughput[name].append(batch * steps / _seconds(step, steps, device))
        yield [
            StepResult(name, size, statistics.median(r), min(r), max(r), getattr(steps_of[name], "replays", 0))
            for name, r in throughput.items()
        ]


def _seconds(train: Steps, steps: int, device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    train(steps)
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(results: list[StepResult]) -> Table:
    """Return images/s, the ratio to the plain PyTorch loop at the same size, and the replayed steps."""
    shown = Table(
        "px", "contender", "images/s", "min-max", "ratio to plain PyTorch", "replays", box=None, header_style="bold"
    )
    base = {r.size: r.median for r in results if r.contender == PLAIN}
    for r in results:
        spread = f"{r.minimum:,.1f}-{r.maximum:,.1f}"
        ratio = f"{r.median / base[r.size]:.3f}" if r.size in base else ""
        shown.add_row(str(r.size), r.contender, f"{r.median:,.1f}", spread, ratio, str(r.replays or ""))
    return shown


def machine(device: torch.device) -> dict[str, str]:
    """Return the hardware and versions of the measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {"device": name, "torch": torch.__version__, "timm": timm.__version__, "python": platform.python_version()}


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Measure the throughput of a recipe's training step beside its peers.")
    parser.add_argument("--recipe", default="mild")
    parser.add_argument("--model", default="resnet50", help="a ResNet that torchvision and timm both have")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 176, 224], metavar="PX")
    parser.add_argument("--batch", type=int, default=256 if on_gpu else 16)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measurement of the slowest contender")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--build-seconds", type=float, default=3600.0, help="for the contenders of a size")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--precision", choices=["bf16", "fp16", "fp32"], default="bf16" if on_gpu else "fp32")
    parser.add_argument("--launch", choices=[EAGER, "graphs", "compiled"], default=EAGER)
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
