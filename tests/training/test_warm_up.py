from __future__ import annotations

import pytest
import torch

from launcher.training.worker import warm_up
from tests.trainers import EARLY, build, steps, tensors


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
    assert "image sizes in" in capsys.readouterr().out
    assert (warm.next_step, warm.clock.seconds("training")) == (2, 0)
    assert after + steps(warm, 2) == before
    for key in ("model", "weights", "optimizer", "algorithms", "scaler"):
        ours, theirs = tensors(warm.state_dict()[key]), tensors(cold.state_dict()[key])
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs)), key


def test_a_new_run_is_warmed_up_for_each_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = build("algorithms=[progressive_resizing]")
    seen = []
    inner = run.train_step.engine.compute_gradients
    monkeypatch.setattr(
        run.train_step.engine,
        "compute_gradients",
        lambda batch, *rest: seen.append(batch.images.shape[-1]) or inner(batch, *rest),
    )
    warm_up(run)
    assert sorted(seen) == sorted({run.plan.image_size(number) for number in range(run.plan.total_steps)})
    assert len(seen) > 1
