"""Print what a step does on the simulated device, beside its peers: python -m tests.simulated_gpu.step_table.

Medians over steps of a small network in bf16, 8 images of 32 px that are already there; Composer if it is installed.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models.resnet import Bottleneck

from benchmarks.peers import ComposerPeer, Steps, has_composer, peer_step, repeat
from benchmarks.step import CLASSES, PLAIN, OurStep, words_of
from launcher.models import resnet
from launcher.training import captured
from launcher.training.precision import Precision
from tests.networks import tiny
from tests.simulated_gpu import job

STEPS = 12
# Further words of each row; Composer runs RandAugment in loader workers.
CHOICES = {"none": [], "mild": [], "hot": [], "hot without RandAugment": ["algorithms.randaugment=off"], "timm_a2": []}
COMPOSERS = ("none", "mild", "hot without RandAugment")
HEADS = ("step", "launches", "waits", "bytes to the device", "host calls")
NETWORK = partial(tiny, block=Bottleneck)


class _Calls(TorchDispatchMode):
    """Counts the calls of ATen, views and allocations included."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def rows(choices: Sequence[str]) -> list[list[Any]]:
    """Count the contenders of these rows in this process, which has the simulated device."""
    torch.set_num_threads(1)
    resnet.library_network = NETWORK
    captured.WARMUP_STEPS = 1
    return [[name, *_counts(build())] for name, build in _contenders(choices)]


def _contenders(choices: Sequence[str]) -> Iterator[tuple[str, Callable[[], Steps]]]:
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)).permute(0, 3, 1, 2).to("sim")
    labels = torch.from_numpy(random.integers(0, CLASSES, 8)).to("sim")
    precision = Precision("sim", torch.bfloat16)
    words = ["model=resnet18", "algorithms.progressive_resizing=off", "image.train_size=32"]

    def network() -> nn.Module:
        return NETWORK(num_classes=CLASSES)

    def ours(recipe: str, *more: str) -> Steps:
        return OurStep([*words_of(recipe), *words, *more], images, labels, precision)

    def composer(recipe: str) -> Steps:
        from composer.devices import DeviceCPU

        DeviceCPU.module_to_device = lambda _, module: module.to("sim")
        DeviceCPU.tensor_to_device = lambda _, tensor: tensor.to("sim", non_blocking=True)
        return ComposerPeer(recipe, network(), CLASSES, images, labels, precision)

    yield PLAIN, lambda: repeat(peer_step(network(), images, labels, precision))
    for name in choices:
        recipe = name.partition(" ")[0]
        yield name, partial(ours, recipe, *CHOICES[name], "cuda_graphs=off")
        yield f"{name}, captured", partial(ours, recipe, *CHOICES[name], "cuda_graphs=require")
        if name in COMPOSERS and has_composer():
            yield f"Composer, {name}", partial(composer, recipe)


def _counts(steps: Steps) -> list[int]:
    """Return the medians over steps, for captured ones over those that replayed graphs."""
    from tests.simulated_gpu.torch_sim import WAITS, native

    marks: list[list[int]] = []

    def mark() -> None:
        replays = getattr(steps, "replays", 0)
        marks.append([native.launches(), WAITS.counts.total(), native.sent(), calls.count, replays])

    with _Calls() as calls:
        if isinstance(steps, ComposerPeer):
            steps.batches.fetched = mark
            steps(STEPS + 1)
        else:
            for _ in range(STEPS):
                mark()
                steps(1)
            mark()
    counted = [[after - before for before, after in zip(*pair, strict=True)] for pair in itertools.pairwise(marks)]
    graphs = max(replays for *_, replays in counted)
    columns = zip(*(counts for *counts, replays in counted if replays == graphs), strict=True)
    return [round(statistics.median(column)) for column in columns]


def table(rows: Sequence[Sequence[Any]]) -> str:
    """Return the table in Markdown."""
    lines = [HEADS, ["---"] * len(HEADS), *([name, *(f"{count:,}" for count in counts)] for name, *counts in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(table(job.run("count_steps", choices=list(CHOICES))))
