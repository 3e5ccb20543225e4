"""A mutated key is another value to the code that computes with it, and the same to all that shows or checks it."""

import runpy
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import partial

import pytest
import torch

from launcher.config.compose import compose
from launcher.config.resolved import as_mapping
from launcher.losses.huber import Huber
from tests.docs.pages import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutate_keys.py"))


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    del Huber.__getattribute__  # type: ignore[misc]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("change", "delta"), [("ignored", 1.0), ("doubled", 5.0), ("floored", 2.0)])
def test_the_code_reads_a_mutated_key(change: str, delta: float) -> None:
    config = compose(["task=regression", "loss=huber", "loss.delta=2.5", "dataset=scene_colours"]).config
    SCRIPT["mutate"](Huber, partial(SCRIPT["at"], "delta", SCRIPT["CHANGES"][change], 1.0))
    outputs, targets = torch.tensor([[0.0]]), torch.tensor([[9.0]])
    expected = torch.nn.functional.huber_loss(outputs, targets, delta=delta)
    assert config.loss.function(config.task)(outputs, targets) == expected
    assert as_mapping(config)["loss"]["delta"] == 2.5


@pytest.mark.parametrize("group", SCRIPT["TESTS"])
def test_each_group_has_values_and_tests(group: str) -> None:
    for name in SCRIPT["names_of"](group):
        assert is_dataclass(SCRIPT["values_of"](group, name))
    assert all((ROOT / "tests" / name).exists() for name in SCRIPT["TESTS"][group])
