"""`train lr-find`: the learning rate that it suggests, and its command."""

import json

import pytest

from launcher_lab.cli.lr_find import suggested
from tests.commands import refused
from tests.runs import SMALL, Here, Train

pytestmark = pytest.mark.slow

RATES = [10 ** (step / 10 - 5) for step in range(60)]


def test_a_tenth_of_the_rate_of_the_lowest_loss_is_suggested() -> None:
    points = [(rate, 3 - min(step, 40) / 20 + max(0, step - 40)) for step, rate in enumerate(RATES)]
    chosen = suggested(points)
    assert chosen is not None
    assert RATES[35] < 10 * chosen < RATES[41]


@pytest.mark.parametrize("losses", [[2.3] * 60, [2.3 + step / 10 for step in range(60)], []])
def test_a_loss_that_does_not_fall_gives_no_rate(losses: list[float]) -> None:
    assert suggested([*zip(RATES, losses, strict=False)]) is None


def test_it_trains_at_rising_rates_and_scales_the_word_to_type(here: Here) -> None:
    words = [
        *SMALL,
        *("epochs=10", "optimizer=sgd", "algorithms=[]", "optimizer.lr=2.0", "optimizer.reference_batch_size=64"),
    ]
    found = json.loads(here("lr-find", *words, "--steps", "40", "--json").stdout)
    rates = [rate for rate, _ in found["points"]]
    assert rates[0] == pytest.approx(1e-5)
    assert rates == sorted(rates)
    assert (here.folder / "runs" / "lr_find.png").read_bytes().startswith(b"\x89PNG")
    assert found["lr"] is None or found["word"] == f"optimizer.lr={found['lr'] * 64 / 16:.2g}"
    assert not [*(here.folder / "runs").glob("*/config.yaml")]
    again = json.loads(here("lr-find", *words, "--steps", "20", "--json").stdout)
    assert again["image"] == "runs/lr_find-2.png"


def test_three_ranks_stop_together_where_the_loss_diverges(train: Train) -> None:
    shown = train("lr-find", *SMALL, "epochs=20", "batch_size=24", "launch.nproc=3", "--steps", "40").stdout
    assert "steps " in shown
    assert "lowest loss" in shown


def test_too_few_steps_are_refused() -> None:
    assert "--steps=3: must be from 20" in refused("lr-find", "--steps", "3")
    short = refused("lr-find", *SMALL, "epochs=1", "schedule.warmup=0ba")
    assert "epochs=1: gives 6 steps, but the test needs 20" in short
