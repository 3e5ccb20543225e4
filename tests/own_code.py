"""Code as users write it in their own folder, for tests."""

import sys
from pathlib import Path

import pytest

from launcher.config import code
from tests.runs import SHORT, Train

NETWORKS = """
from timm.models import register_model
from torch import nn


class TinyNet(nn.Module):
    def __init__(self, num_classes: int, width: int = 8, slope: float = 0.1):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width)
        self.head, self.slope = nn.Linear(width, num_classes), slope

    def forward(self, images):
        return self.head(nn.functional.leaky_relu(self.norm(self.conv(images)), self.slope).mean((2, 3)))


@register_model
def my_tiny(pretrained=False, num_classes=10, **_):
    return TinyNet(num_classes)
"""
METRICS = """
def top2(outputs, targets, k: int = 2):
    return (outputs.topk(k).indices == targets[:, None]).any(1)


def mean_of_batch(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()
"""
WATCH = """
class Watch:
    def __init__(self, every: int = 2, fail_at: int = -1):
        self.every, self.fail_at, self.seen = every, fail_at, 0

    def after_step(self, state):
        self.seen += 1
        if (state.step, state.rank) == (self.fail_at, state.world_size - 1):
            raise RuntimeError("no such luck")
        if state.step % self.every == 0:
            self.write(state, f"step {state.step} {state.loss:.6f} {self.seen}")

    def after_epoch(self, state):
        self.write(state, f"epoch {state.epoch} of {state.total_steps // state.steps_per_epoch}")

    def after_evaluation(self, state):
        self.write(state, f"evaluation {state.metrics['top2']:.2f}")

    def write(self, state, line):
        if state.rank == 0:
            with (state.folder / "watch.txt").open("a") as file:
                print(line, file=file)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]
"""
FORMULAS = """
import torch
from torch.nn import functional as F


def ramp(progress, power: float = 1.0):
    return (1 - progress) ** power


def falling(progress):
    return 0.5 - progress


def soft(outputs, targets, smoothing: float = 0.0):
    if targets.ndim > 1:
        return -(targets * outputs.log_softmax(1)).sum(1).mean()
    return F.cross_entropy(outputs, targets, label_smoothing=smoothing)


class Sign(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.01, momentum: float = 0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    average = state.setdefault("average", torch.zeros_like(parameter))
                    average.mul_(group["momentum"]).add_(parameter.grad)
                    parameter.add_(average.sign(), alpha=-group["lr"])
"""
DARK = """
from dataclasses import replace

from pydantic.dataclasses import dataclass

from launcher.compute import randomness
from launcher.algorithms.base import Algorithm, Transform
from launcher.config.fields import STRICT, Probability


@dataclass(config=STRICT)
class Dark(Algorithm, change_batch=-5):
    probability: Probability

    def change_batch(self, batch, size):
        draws = randomness.uniforms(batch.moment.seed, "dark", batch.moment.epoch, batch.indices, 1)[:, 0]
        halves = (draws < self.probability).astype("uint8")
        return Transform([halves], lambda batch, by: replace(batch, inputs=batch.inputs >> by.view(-1, 1, 1, 1)))
"""
TYPED = (
    DARK
    + """
import struct
from typing import Literal

from launcher.config.choices import LossConfig, ModelConfig, ScheduleConfig
from launcher.config.fields import Count
from launcher.config.goals import Metric
from launcher.data.sources.formats import Listing
from launcher.data.sources.shards import ArchiveFormat
from launcher.later import F, nn, torch
from launcher.optimizers.base import MaskedOptimizer
from launcher.tasks.classification import Classification


@dataclass(frozen=True, config=STRICT)
class Tiny(ModelConfig):
    name: Literal["tiny"]
    width: Count

    def network(self, classes, seed):
        pooled = nn.Sequential(nn.Conv2d(3, self.width, 3), nn.BatchNorm2d(self.width), nn.AdaptiveAvgPool2d(1))
        return nn.Sequential(pooled, nn.Flatten(), nn.Linear(self.width, classes))


@dataclass(frozen=True, config=STRICT)
class Plain(MaskedOptimizer):
    name: Literal["plain"]

    def _update(self, parameters, gradients, group):
        averages = self._state(parameters, "average")
        self._average(averages, gradients, 0.1)
        self._subtract(parameters, averages, group["lr"], group["weight_decay"])


@dataclass(frozen=True, config=STRICT)
class Steep(ScheduleConfig):
    name: Literal["steep"]

    def after_warmup(self, clock):
        return (1 - clock.done) ** 3


@dataclass(frozen=True, config=STRICT)
class Hinge(LossConfig):
    labels = ("class",)
    scores = "softmax"

    name: Literal["hinge"]

    def function(self, task):
        return lambda outputs, targets, weights=None: F.multi_margin_loss(outputs.float(), targets)


@dataclass(config=STRICT)
class Amounts(Classification):
    metrics = (Metric("mae", "error", better="lower", is_share=False),)

    name: Literal["amounts"]

    def states(self, outputs, targets):
        return {"mae": (outputs.argmax(1) - targets).abs().sum()}

    def evaluated(self, states, samples):
        return {"mae": states["mae"].item() / samples}


class Raw(ArchiveFormat):
    extension = ".raw"

    def list(self, file, archive, columns):
        listing = Listing(is_table=True)
        while head := file.read(8):
            label, size = struct.unpack("<II", head)
            listing.add(f"{len(listing.names)}.jpg", str(label), file.tell(), size)
            file.seek(size, 1)
        return listing
"""
)
NETS = NETWORKS + METRICS + WATCH


def name_code(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "nets") -> None:
    """Write a file, go to its folder, and name it in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("TRAIN_CODE", "[]")
    monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / f"{name}.py").write_text(text)
    code.use([f"{name}.py"])


def own_folder(train: Train, files: dict[str, str]) -> Train:
    """Write files into the working directory of the command, whose trusted code is of this test alone."""
    for name, text in files.items():
        path = train.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    train.environment = {**train.environment, "XDG_CACHE_HOME": str(train.folder / "cache")}
    return train


# The files of a folder with each kind of option, and words of one run.
STRANGER = {
    **{"nets.py": NETS, "formulas.py": FORMULAS + METRICS + WATCH, "typed.py": TYPED},
    "conf/model/mine.yaml": "# Two layers.\n_target_: nets.TinyNet\nwidth: 16\n",
    "conf/model/tiny.yaml": "{name: tiny, width: 4, architecture: tiny, weights: null, weights_sha256: null, "
    "checkpointing: 'off'}\n",
    "conf/optimizer/plain.yaml": "{name: plain, lr: 0.01, reference_batch_size: 16, scale_lr: 'off', backbone_lr: 1.0, "
    "layer_decay: 1.0, weight_decay: 0.0, no_decay: none}\n",
    "conf/algorithms/dark.yaml": "# @package algorithms.dark\nprobability: 0.5\n",
    "conf/algorithms/turned.yaml": "_target_: torchvision.transforms.v2.RandomRotation\ndegrees: 30\n",
    "conf/schedule/steep.yaml": "defaults: [constant, _self_]\nname: steep\n",
    "conf/loss/hinge.yaml": "name: hinge\n",
    "conf/task/amounts.yaml": "name: amounts\n",
    "conf/callbacks/watch.yaml": "_target_: formulas.Watch\n",
}
WORDS_OF_STRANGER = [
    *(word for word in SHORT if word != "model=resnet18" and not word.startswith("algorithms.ema")),
    *("code=[nets.py,formulas.py,typed.py]", "model.width=4", "algorithms=[dark]", "model=mine"),
    *("optimizer._target_=formulas.Sign", "optimizer.lr=0.001", "loss._target_=formulas.soft"),
    *("schedule._target_=formulas.ramp", "metrics.top2._target_=nets.top2", "callbacks.watch._target_=nets.Watch"),
]
# A short run on two ranks of the user's network, without an algorithm.
OWN = [word for word in SHORT if word != "model=resnet18" and not word.startswith("algorithms.ema")]
OWN += ["code=nets.py", "model=mine", "model.width=4", "algorithms=[]"]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
