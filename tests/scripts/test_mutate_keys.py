"""A mutated key is another value to the code that computes with it, and the same to all that shows or checks it."""

import runpy
from collections.abc import Iterator

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
    SCRIPT["mutate_label"](SCRIPT["kinds_of"]("loss", "huber"), "loss.huber.delta", change)
    outputs, targets = torch.tensor([[0.0]]), torch.tensor([[9.0]])
    expected = torch.nn.functional.huber_loss(outputs, targets, delta=delta)
    assert config.loss.function(config.task)(outputs, targets) == expected
    assert as_mapping(config)["loss"]["delta"] == 2.5


@pytest.mark.parametrize(
    ("value", "doubled", "floored"),
    [(1.5, 3.0, 1.0), ([0.5, 2], [1.0, 4], [0.0, 2]), ("2.5ep", "5ep", "2ep"), ("mean", "mean", "mean"), (True,) * 3],
)
def test_numbers_of_lists_and_durations_change(value: object, doubled: object, floored: object) -> None:
    assert [SCRIPT["CHANGES"][change](value, None) for change in ("doubled", "floored")] == [doubled, floored]


def test_an_inherited_key_is_one_of_each_option_whose_own_file_reads_it() -> None:
    kinds = SCRIPT["kinds_of"]("optimizer")
    adamw = next(of for of in kinds.values() if of.place == "optimizer.adamw")
    assert adamw.label("lr", "launcher.plan.plan") == "optimizer.lr"
    assert adamw.label("beta1", adamw.module) == "optimizer.adamw.beta1"
    seen = {"optimizer.adamw.beta1": {}, "optimizer.lr": {}}
    labels = [label for label, change in SCRIPT["changes"](kinds, seen) if change == "ignored"]
    assert {"optimizer.adamw.beta1", "optimizer.lr", "optimizer.weight_decay"} <= {*labels}
    assert "optimizer.adamw.lr" not in labels


@pytest.mark.parametrize("group", SCRIPT["TESTS"])
def test_each_group_has_values_and_tests(group: str) -> None:
    assert SCRIPT["kinds_of"](group)
    assert all((ROOT / "tests" / name).exists() for name in SCRIPT["TESTS"][group])
