from __future__ import annotations

import pytest

from launcher.training.worker import warm_up
from tests.trainers import EARLY, assert_same_state, build, steps


@pytest.mark.parametrize(
    "words",
    [
        ["algorithms=[ema,sam,progressive_resizing,blurpool]", *EARLY["ema"], *EARLY["sam"]],
        ["algorithms=[layer_freezing,selective_backprop]", *EARLY["layer_freezing"], *EARLY["selective_backprop"]],
    ],
)
def test_a_run_that_was_warmed_up_computes_the_same(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cold, warm = (build(*words) for _ in range(2))
    before = steps(cold, 2) + steps(cold, 2)
    after = steps(warm, 2)
    warm_up(warm)
    sizes = {warm.plan.image_size(number) for number in range(2, warm.plan.total_steps)}
    assert capsys.readouterr().out.startswith(f"warmed up {len(sizes)} image sizes in ")
    assert (warm.next_step, warm.clock.seconds("training")) == (2, 0)
    assert after + steps(warm, 2) == before
    assert_same_state(warm, cold)
