from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.algorithms.base import Algorithm, Context
from launcher.algorithms.engine import Engine
from launcher.algorithms.sam import SAM
from launcher.config.algorithms import ALGORITHMS
from launcher.config.compose import compose
from launcher.config.declaration import POINTS, PREPARE, AlgorithmConfig
from launcher.data.batch import Batch, Moment, forget_constants, normalize
from launcher.errors import UserError
from launcher.plan.plan import Plan
from tests.networks import tiny
from tests.trainers import RECIPES

ALGORITHMS = ALGORITHMS.declarations()


def declare(places: dict[str, int]) -> None:
    class Half(SAM, **places):  # type: ignore[call-arg]
        def before_step(self, model: nn.Module, moment: Moment) -> None:
            """Do nothing."""


def declare_values() -> None:
    class DarkConfig(AlgorithmConfig, change_batch=-5):
        """Values in a class of their own."""

    class Dark(Algorithm[DarkConfig]):  # type: ignore[type-arg]
        """The code."""


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            partial(declare, {"compute_gradients": 10}),
            "Half has before_step, but not its place there; add",
        ),
        (
            partial(declare, {"compute_gradients": 10, "before_step": 3, "after_step": 1}),
            "Half declares after_step, but has no such method; write it",
        ),
        (declare_values, "DarkConfig and Dark are one class now: write class Dark(Algorithm, change_batch=-5), with"),
    ],
)
def test_an_algorithm_that_lacks_a_part_is_refused_in_one_line(make: Callable[[], None], line: str) -> None:
    with pytest.raises(UserError) as raised:
        make()
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("point", POINTS)
def test_no_two_algorithms_have_the_same_place(point: str) -> None:
    places = [algorithm.places[point] for algorithm in ALGORITHMS.values() if point in algorithm.places]
    assert places
    assert len({0, *places}) == len(places) + 1


def test_algorithms_change_the_batch_in_their_declared_order() -> None:
    augmentations = ["randaugment", "trivialaugment", "augmix", "colout"]
    after = ["progressive_resizing", "cutout", "random_erasing", "selective_backprop", "label_smoothing"]
    last = ["mixup", "cutmix", "channels_last", "stochastic_depth"]
    words = f"algorithms=[{','.join([*augmentations, *after, *last])}]"
    every = compose([words, "algorithms.randaugment.where=device"]).config.algorithms
    behind = compose([words, "algorithms.colout.order=after_resizing"]).config.algorithms
    assert every.acting("change_batch") == [*augmentations, PREPARE, *after, *last]
    assert every.acting("change_image") == []
    assert behind.acting("change_batch")[-10:-7] == ["progressive_resizing", "colout", "cutout"]


def test_the_batch_is_normalized_between_its_algorithms(
    context: Callable[..., Context], batch: Callable[..., Any]
) -> None:
    run = context("algorithms=[mixup,label_smoothing,progressive_resizing]", "algorithms.mixup.alpha=1.0")
    engine = Engine(run)
    seen: list[torch.Size] = []

    def prepare(batch: Batch) -> Batch:
        seen.append(batch.inputs.shape)
        return replace(batch, inputs=batch.inputs.float() / 255)

    loaded = replace(batch(size=64), inputs=torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8))
    changed = engine.change_batch(loaded, prepare)
    assert seen == [(8, 3, 64, 64)]
    assert changed.inputs.shape == (8, 3, 32, 32)
    assert changed.targets.shape == (8, 10)
    torch.testing.assert_close(changed.targets.sum(1), torch.ones(8))


@pytest.mark.parametrize("step", [0, 50, 99])
@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        (["algorithms=[colout,progressive_resizing]"], 32, 64),
        (["algorithms=[colout,progressive_resizing]", "algorithms.colout.order=after_resizing"], 30, 60),
        (["algorithms=[colout]"], 60, 60),
        (["algorithms=[colout]", "algorithms.colout.order=after_resizing"], 60, 60),
        (["algorithms=[colout]", "algorithms.colout.columns=0.5", "algorithms.colout.rows=0.0"], 45, 45),
        (["algorithms=[colout,progressive_resizing]", "algorithms.progressive_resizing.where=loader"], 32, 64),
    ],
)
def test_the_plan_has_the_image_size_of_the_network(
    words: list[str], first: int, last: int, step: int, context: Callable[..., Context], batch: Callable[..., Any]
) -> None:
    run = context("image.reference=64", "image.train_size=64", *words)
    loaded = batch(size=run.plan.loaded_view(step), step=step)
    changed = Engine(run).change_batch(loaded, lambda batch: batch)
    height, width = changed.inputs.shape[-2:]
    assert run.plan.view(step) == round((height * width) ** 0.5)
    assert (run.plan.view(0), run.plan.view(99)) == (first, last)


class Copies(TorchDispatchMode):
    """Counts asynchronous copies from the host; refuses synchronous ones and reads from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.longest_float32 = 0
        self._pinned: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._pin_memory.default:
            # note: fake tensors cannot be pinned
            self._pinned.append(args[0])
            return args[0]
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.dtype is torch.float32:
            self.longest_float32 = max(self.longest_float32, result.numel())
        devices = [argument.device.type for argument in args if isinstance(argument, torch.Tensor)]
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default) and isinstance(result, torch.Tensor):
            if func is torch.ops.aten._to_copy.default and devices[0] != result.device.type:
                assert (devices[0], result.device.type) == ("cpu", "cuda"), "synchronizes with the device"
                assert kwargs.get("non_blocking"), "synchronizes for a copy"
                assert any(args[0] is pinned for pinned in self._pinned), "synchronizes for a copy from pageable memory"
                self.count += 1
            else:
                assert len(set(devices)) == 1, "synchronizes for a copy"
        return result


# note: the generator of random erasing's noise needs a real device
NOISE = ("efficienttrain_deit_s", "efficienttrain_rn50")


@pytest.mark.parametrize("words", [*([f"recipe={name}"] for name in RECIPES), ["algorithms=[augmix,cutout,cutmix]"]])
def test_preparing_a_batch_synchronizes_with_no_copy(words: list[str]) -> None:
    zero = ["algorithms.random_erasing.fill=zero"] * any(name in words[0] for name in NOISE)
    config = compose([*words, *zero]).config
    run = Context(Plan(config, 8, 1_281_167), 1000)
    engine = Engine(run)
    model = tiny()
    engine.change_model(model)
    forget_constants()
    size, moment = config.image.train_size, Moment(config.seed, 9, 5000, run.plan.total_steps)
    normal = partial(normalize, mean=[0.4] * 3, std=[0.2] * 3, dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), Copies() as copies:
        images = torch.empty(32, 3, size, size, dtype=torch.uint8, device="cuda")
        normal(images)
        assert copies.count == 2
        copies.count = 0
        targets = torch.zeros(32, dtype=torch.long, device="cuda")
        batch = Batch(images, targets, np.arange(32), moment)
        prepared = engine.change_batch(batch, lambda batch: replace(batch, inputs=normal(batch.inputs)))
    forget_constants()
    assert prepared.inputs.is_cuda
    assert prepared.inputs.dtype is torch.bfloat16
    # note: AugMix sums its chains in float32
    assert copies.longest_float32 < images.numel() or config.algorithms["augmix"]
    assert prepared.targets.is_cuda
    # note: one for all draws, and in the first step one for the fill colour of timm's and AutoAugment's sets
    without_draws = {PREPARE, "progressive_resizing", "label_smoothing", "channels_last"}
    drawing = set(config.algorithms.acting("change_batch")) - without_draws
    assert copies.count == bool(drawing) + any(name in words[0] for name in ("timm", "vit", "efficienttrain"))
