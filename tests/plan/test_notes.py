from __future__ import annotations

import pytest

from launcher.config.compose import compose
from launcher.plan.checks import notes
from launcher.plan.plan import Plan


def said(*words: str, world: int = 8, samples: int = 1_281_167) -> list[str]:
    return notes(Plan(compose(words).config, world, samples))


@pytest.mark.parametrize("recipe", ["mild", "medium", "hot", "baseline"])
def test_a_recipe_as_published_needs_none(recipe: str) -> None:
    assert said(f"recipe={recipe}") == []


def test_a_scaled_learning_rate_is_said() -> None:
    (line,) = said("recipe=mild", "batch_size=1024")
    assert line.startswith("learning rate 2.048 is for a batch of 2048; at 1024 it is scaled to 1.024")
    assert said("recipe=mild", "batch_size=1024", "optimizer.scale_lr=off") == []


def test_pictures_that_no_batch_takes_are_counted() -> None:
    assert said("recipe=baseline", samples=3500) == ["each epoch drops 1452 of 3500 images, its last partial batch"]


def test_a_batch_norm_of_few_images_is_said() -> None:
    assert said("recipe=baseline", world=256) == ["batch norm uses only 8 images per forward pass"]
    assert said("recipe=baseline", "device_batch_size=8") == ["batch norm uses only 8 images per forward pass"]
    assert said("recipe=baseline", "model=vit", world=256) == []


def test_an_average_that_lags_behind_a_short_run_is_said() -> None:
    words = ("recipe=mild", "epochs=1", "schedule.warmup=0.1dur")
    (line,) = said(*words, samples=200 * 2048)
    # after 200 steps of half-life 100 a quarter is left
    assert (
        "25% of the initial weights at the end: algorithms.ema.half_life=100ba is long for 200 steps; "
        "set a tenth of them, 20ba" in line
    )
    assert said(*words, "algorithms.ema.half_life=20ba", samples=200 * 2048) == []
    assert said(*words, "algorithms.ema=off", samples=200 * 2048) == []


def test_compiling_for_a_cpu_is_advised_against() -> None:
    (line,) = said("recipe=mild", "compile=on", "launch=cpu")
    assert "compile=on was slower than compile=off on every CPU measured" in line
    assert said("recipe=mild", "compile=on", "launch.device=cuda") == []
