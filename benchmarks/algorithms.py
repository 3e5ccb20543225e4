"""Measure the cost of each algorithm: the time of a training step with it, as a ratio to the step without any.

    python -m benchmarks.algorithms --size 176 --batch 256 --json algorithms.json

Every step runs on uint8 images that are already on the device. Each algorithm alternates with the plain step; the
results are medians. An algorithm that acts only at some steps (SAM, selective backprop) is timed over whole intervals.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.peers import Steps
from benchmarks.step import CLASSES, OurStep, StepResult, machine, measure
from launcher.config.algorithms import ALGORITHMS
from launcher.training.precision import Precision

PLAIN = "none"
# Algorithms that act only in a part of the run are timed in that part.
_ACTING = {
    "swa": ["algorithms.swa.start=0ba"],
    "selective_backprop": ["algorithms.selective_backprop.start=0.0"],
    "layer_freezing": ["algorithms.layer_freezing.start=0.0"],
    "ghost_batchnorm": ["algorithms.ghost_batchnorm.ghost_batch_size=2"],
    "randaugment": ["algorithms.randaugment.where=device"],
}


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    device = torch.device(arguments.device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[arguments.precision]
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    results = [
        result
        for name in arguments.algorithms
        for result in _beside_plain(name, arguments, device, Precision(device.type, dtype))
    ]
    Console().print(_table(results))
    if arguments.json:
        costs = {name: cost for name, cost, _ in _costs(results)}
        facts = {"arguments": {**vars(arguments), "json": None}, "machine": machine(device), "ratios": costs}
        Path(arguments.json).write_text(json.dumps(facts, indent=2) + "\n")
    return 0


def _beside_plain(
    name: str, arguments: argparse.Namespace, device: torch.device, precision: Precision
) -> list[StepResult]:
    """Time the plain step and the step with one algorithm, alternating."""
    size, batch = arguments.size, arguments.batch
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (batch, size, size, 3), dtype=np.uint8))
    images, labels = pixels.permute(0, 3, 1, 2).to(device), torch.from_numpy(random.integers(0, CLASSES, batch))
    words = ["recipe=baseline", f"model={arguments.model}", f"image.train_size={size}"]
    base = [] if name == "channels_last" else ["channels_last"]
    steps = {
        PLAIN: [*words, f"algorithms=[{','.join(base)}]"],
        name: [*words, f"algorithms=[{','.join([*base, name])}]", *_ACTING.get(name, [])],
    }
    contenders: dict[str, Steps] = {
        key: OurStep(value, images, labels.to(device), precision) for key, value in steps.items()
    }
    rounds = measure(
        contenders, size=size, batch=batch, steps=arguments.steps, repeats=arguments.repeats, device=device
    )
    return list(rounds)[-1]


def _costs(results: list[StepResult]) -> list[tuple[str, float, StepResult]]:
    """Return each algorithm's name, its step time relative to the plain step, and its throughput."""
    pairs = zip(results[::2], results[1::2], strict=True)
    return [(result.contender, plain.median / result.median, result) for plain, result in pairs]


def _table(results: list[StepResult]) -> Table:
    table = Table("algorithm", "step time / plain", "images/s", "min-max", box=None, header_style="bold")
    for name, cost, result in _costs(results):
        table.add_row(name, f"{cost:.3f}", f"{result.median:,.1f}", f"{result.minimum:,.1f}-{result.maximum:,.1f}")
    return table


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    # note: an algorithm that only changes the order of samples costs nothing in the step
    declared = ALGORITHMS.declarations().items()
    of_images = ((name, one) for name, one in declared if one.acts_on != ("tokens",))
    # note: distillation needs a teacher
    names = [name for name, one in of_images if one.places.keys() - {"change_order"} and name != "distillation"]
    parser = argparse.ArgumentParser(
        description="Measure the cost of each algorithm as a ratio to the plain training step."
    )
    parser.add_argument("--algorithms", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--size", type=int, default=176, metavar="PX")
    parser.add_argument("--batch", type=int, default=256 if on_gpu else 16)
    parser.add_argument("--steps", type=int, default=30 if on_gpu else 10, help="steps per measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--precision", choices=["bf16", "fp16", "fp32"], default="bf16" if on_gpu else "fp32")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
