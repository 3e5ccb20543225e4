"""Measure the throughput of a recipe's training step beside a plain PyTorch loop, timm's ResNet and Composer.

    python -m benchmarks.step --recipe mild --sizes 128 176 224 --batch 256 --compiled --json step.json

All contenders train on the same uint8 images, which are already on the device, and alternate in one process; results
are medians. Composer is included if it is installed. A contender that cannot run is skipped with the reason.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.peers import ComposerPeer, Steps, has_composer, peer_step, repeat
from benchmarks.result import Result
from launcher import atomic
from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.errors import UserError, one_line
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from launcher.training.captured import CapturedSteps, Capturer
from launcher.training.precision import Precision
from launcher.training.trainer import build_step

CLASSES = 1000
PLAIN = "plain PyTorch loop"


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    device = torch.device(arguments.device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[arguments.precision]
    precision = Precision(device.type, dtype)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    results: list[Result] = []
    facts = {"arguments": {**vars(arguments), "json": None}, "machine": machine(device)}
    for size in arguments.sizes:
        steps_of = contenders(
            arguments.recipe, arguments.model, size, arguments.batch, device, precision, compiled=arguments.compiled
        )
        results += measure(
            steps_of, size=size, batch=arguments.batch, steps=arguments.steps, repeats=arguments.repeats, device=device
        )
        if arguments.json:  # note: after each size, since a time limit may end the process during compilation
            text = json.dumps({**facts, "results": list(map(asdict, results))}, indent=2) + "\n"
            atomic.write_text(Path(arguments.json), text)
    Console().print(table(results, arguments.recipe))
    return 0


def contenders(
    recipe: str,
    model: str,
    size: int,
    batch: int,
    device: torch.device,
    precision: Precision,
    *,
    compiled: bool = False,
) -> dict[str, Steps]:
    """Return each contender's name, and a function that trains a number of steps."""
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (batch, size, size, 3), dtype=np.uint8))
    images = pixels.permute(0, 3, 1, 2).to(device)
    labels = torch.from_numpy(random.integers(0, CLASSES, batch)).to(device)

    def ours(name: str, *extra: str) -> Callable[[], Steps]:
        return lambda: launcher_step(name, model, size, images, labels, precision, extra)

    def plain(build: Callable[[], nn.Module], compiled: bool = False) -> Callable[[], Steps]:
        return lambda: repeat(peer_step(build(), images, labels, precision, compiled=compiled))

    def torchvisions() -> nn.Module:
        network: nn.Module = torchvision.models.get_model(model, weights=None, num_classes=CLASSES)
        return network

    def timms() -> nn.Module:
        network: nn.Module = timm.create_model(model, num_classes=CLASSES)
        return network

    builders = {
        f"recipe {recipe}": ours(recipe),
        "plain recipe-free step": ours("none"),
        PLAIN: plain(torchvisions),
        "timm model, same loop": plain(timms),
    }
    if compiled:
        builders |= {
            f"recipe {recipe}, compiled": ours(recipe, "compile=on"),
            f"recipe {recipe}, compiled and captured": ours(recipe, "compile=on", "cuda_graphs=on"),
            "plain PyTorch loop, compiled": plain(torchvisions, True),
            "timm model, same loop, compiled": plain(timms, True),
        }
    if has_composer():
        builders[f"Composer, {recipe}"] = lambda: ComposerPeer(
            recipe, torchvisions(), CLASSES, images, labels, precision
        )
    return {name: steps for name, build in builders.items() if (steps := _built(name, build)) is not None}


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


def launcher_step(
    recipe: str, model: str, size: int, images: Tensor, labels: Tensor, precision: Precision, extra: Sequence[str] = ()
) -> Steps:
    """Return our step with the recipe's algorithms at full size."""
    words = [*words_of(recipe), "algorithms.progressive_resizing=off", f"model={model}", *extra]
    return repeat(composed_step(words, size, images, labels, precision))


def composed_step(
    words: Sequence[str], size: int, images: Tensor, labels: Tensor, precision: Precision
) -> Callable[[], object]:
    """Return our step of a command line, after the warmup, with ImageNet's number of classes."""
    base = ["dataset=imagenet", "dataloader=synthetic", f"batch_size={len(images)}", f"image.train_size={size}"]
    base.append(
        f"precision={ {torch.bfloat16: 'bf16', torch.float16: 'fp16', torch.float32: 'fp32'}[precision.dtype] }"
    )
    plan = Plan(compose([*words, *base]).config, 1, 1_281_167)
    step = build_step(plan, Ranks(0, 1, 0, 1, images.device), Engine(Context(plan, CLASSES)))
    if plan.config.compile == "on":
        step.objective.compile(dynamic=False)
    if plan.config.cuda_graphs == "on":
        step.captured = CapturedSteps(Capturer(images.device))
    indices = np.arange(len(images))
    moment = Moment(seed=0, epoch=0, step=plan.warmup_steps, total_steps=plan.total_steps)

    def one() -> None:
        nonlocal moment
        step(images, labels, indices, moment)
        moment = replace(moment, step=moment.step + 1)

    return one


def measure(
    steps_of: dict[str, Steps], *, size: int, batch: int, steps: int, repeats: int, device: torch.device
) -> list[Result]:
    """Time each contender in alternation, `repeats` times, after a warmup of `steps` steps."""
    throughput: dict[str, list[float]] = {name: [] for name in steps_of}
    for step in steps_of.values():
        _seconds(step, steps, device)
    for _ in range(repeats):
        for name, step in steps_of.items():
            throughput[name].append(batch * steps / _seconds(step, steps, device))
    return [Result(name, size, statistics.median(r), min(r), max(r)) for name, r in throughput.items()]


def _seconds(train: Steps, steps: int, device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    train(steps)
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(results: list[Result], recipe: str) -> Table:
    """Return images/s, and the ratio to the plain PyTorch loop at the same size."""
    shown = Table("px", "contender", "images/s", "min-max", "ratio to plain PyTorch", box=None, header_style="bold")
    base = {r.size: r.median for r in results if r.contender == PLAIN}
    for r in results:
        spread = f"{r.minimum:,.1f}-{r.maximum:,.1f}"
        shown.add_row(str(r.size), r.contender, f"{r.median:,.1f}", spread, f"{r.median / base[r.size]:.3f}")
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
    parser.add_argument("--steps", type=int, default=30 if on_gpu else 3, help="steps per measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--precision", choices=["bf16", "fp16", "fp32"], default="bf16" if on_gpu else "fp32")
    parser.add_argument("--compiled", action="store_true", help="also measure compiled steps")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
