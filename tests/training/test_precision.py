"""Which number format a run has, and how weights are cast to it."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.config.compose import compose
from launcher.training.captured import CapturedSteps
from launcher.training.precision import Precision, choose_precision
from tests.graphs import StandIn
from tests.trainers import SIZE_FOR_BF16, build


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_does_not_select_emulated_bfloat16(
    monkeypatch: pytest.MonkeyPatch, native: bool, dtype: torch.dtype
) -> None:
    # note: with emulation torch returns True on a T4 or V100
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert choose_precision(compose([]).config, torch.device("cuda")).dtype == dtype


class Casts(TorchDispatchMode):
    """Counts the casts of single tensors, and of many together."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_captured_steps_cast_all_weights_and_gradients_together() -> None:
    run = build("algorithms=[blurpool]", SIZE_FOR_BF16, "precision=bf16")
    objective = run.train_step.objective
    # note: batch norm computes with float32 weights
    count = sum(weight.ndim > 1 for weight in objective.parameters()) + len(["bias of the last layer"])
    images, targets = torch.rand(4, 3, 32, 32).bfloat16(), torch.rand(4, 10)

    def casts() -> tuple[int, int]:
        with Casts() as mode:
            objective(images, targets).backward()
        return mode.calls["_to_copy"], mode.calls["_foreach_copy_"]

    alone, _ = casts()
    run.train_step.capture(CapturedSteps(StandIn(), "on"))
    together = casts()
    assert together == (alone - 2 * count, 2), count


class Standardized(nn.Conv2d):
    """Stands for a layer that computes with its weights in float32 first, as timm's StdConv2d does."""


def test_only_weights_that_autocast_casts_are_cast_together() -> None:
    tied, own = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    own.weight = tied.weight
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), Standardized(4, 4, 1), tied, own)
    network[0].requires_grad_(False)
    network[0].get_parameter("bias").requires_grad_(True)
    copies = Precision("cpu", torch.bfloat16).copies(network)
    expected = dict.fromkeys(["0.bias", "4.weight", "4.bias"], torch.bfloat16)
    assert {name: copy.dtype for name, copy in copies.items()} == expected
