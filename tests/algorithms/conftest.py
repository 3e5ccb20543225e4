from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from launcher.algorithms.base import Algorithm, Context
from launcher.algorithms.engine import build
from launcher.config.compose import compose
from launcher.data.batch import Batch, Moment
from launcher.plan.plan import Plan

CLASSES = 10


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def context() -> Callable[..., Context]:
    """Return a function from command-line words to a context of 100 steps in 10 epochs of 80 images."""

    def make(*words: str, world_size: int = 1) -> Context:
        config = compose(["epochs=10", "batch_size=8", *words]).config
        return Context(Plan(config, world_size, train_samples=80), CLASSES)

    return make


@pytest.fixture
def bound(context: Callable[..., Context]) -> Callable[..., Any]:
    """Return a function from a name and values to one active algorithm: `bound("sam", rho=0.1)`."""

    def make(name: str, *words: str, world_size: int = 1, **values: Any) -> Algorithm:
        assignments = [f"algorithms.{name}.{key}={value}" for key, value in values.items()]
        run = context(f"algorithms=[{name}]", *assignments, *words, world_size=world_size)
        return build(run)[name]

    return make


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """Return a function that makes a batch of floating-point noise with class indices as targets."""

    def make(count: int = 8, size: int = 16, step: int = 0, rank: int = 0, targets: Tensor | None = None) -> Batch:
        images = torch.randn(count, 3, size, size).contiguous(memory_format=torch.channels_last)
        labels = torch.arange(count) % CLASSES if targets is None else targets
        return Batch(images, labels, np.arange(count), Moment(42, step // 10, step, 100, rank))

    return make
