from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from launcher.algorithms.progressive_resizing import resize
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from tests.transforms import transformed


@pytest.mark.parametrize(("step", "expected"), [(0, 32), (39, 32), (40, 32), (60, 48), (79, 64), (80, 64), (99, 64)])
def test_the_image_size_follows_the_schedule(
    bound: Callable[..., Any], batch: Callable[..., Any], step: int, expected: int
) -> None:
    loaded = batch(size=64, step=step)
    changed = transformed(bound("progressive_resizing"), loaded)
    assert changed.inputs.shape == (8, 3, expected, expected)
    assert changed.inputs.is_contiguous(memory_format=torch.channels_last)
    if expected == 64:
        assert changed.inputs is loaded.inputs


@pytest.mark.parametrize("where", ["device", "loader"])
def test_the_image_size_follows_the_keys_of_the_schedule(bound: Callable[..., Any], where: str) -> None:
    """0.3 + 0.7 * (epoch - 2) / 5 of 64 pixels, in multiples of 8, from the second epoch to the seventh."""
    values = {"initial_scale": 0.3, "delay": 0.2, "finetune": 0.3, "size_multiple": 8, "granularity": "epoch"}
    algorithm = bound("progressive_resizing", **values, where=where)
    plan, expected = algorithm.context.plan, [16, 16, 16, 32, 40, 48, 56, 64, 64, 64]
    assert [algorithm.size(plan, 10 * epoch + 7) for epoch in range(10)] == expected
    loaded = [algorithm.loaded_view(plan, 10 * epoch) for epoch in range(10)]
    assert loaded == (expected if where == "loader" else [None] * 10)


def test_bilinear_resizing_has_pillows_filter() -> None:
    pixels = np.random.default_rng(0).random((30, 30), dtype=np.float32)
    expected = np.asarray(Image.fromarray(pixels).resize((12, 12), Image.Resampling.BILINEAR))
    result = resize(torch.from_numpy(pixels)[None, None], (12, 12), "bilinear")[0, 0]
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("new", [12, 41])
def test_lanczos_resizing_has_pillows_filter(
    bound: Callable[..., Any], batch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, new: int
) -> None:
    resizing = bound("progressive_resizing", "algorithms.progressive_resizing.interpolation=lanczos")
    loaded = batch(size=30)
    monkeypatch.setattr(type(resizing), "size_after", lambda *_: (new, new))
    images = transformed(resizing, loaded).inputs
    assert images.is_contiguous(memory_format=torch.channels_last)
    for ours, image in zip(images.flatten(0, 1), loaded.inputs.flatten(0, 1), strict=True):
        expected = Image.fromarray(image.float().numpy()).resize((new, new), Image.Resampling.LANCZOS)
        np.testing.assert_allclose(ours.numpy(), np.asarray(expected), atol=1e-4)


def test_stages_share_the_compute_by_their_fractions() -> None:
    words = ["algorithms=[progressive_resizing]", "image.train_size=224", "dataset.native_size=224", "epochs=100"]
    words += ["batch_size=64", "algorithms.progressive_resizing.stages=[[96,0.2],[160,0.3],[224,0.5]]"]
    plan = Plan(compose(words).config, 1, 64 * 50)
    counts = {plan.view(steps[0]): len(steps) for steps in plan.of_equal_view(range(plan.total_steps))}
    pixels = {size: count * size**2 for size, count in counts.items()}
    shares = {size: share / sum(pixels.values()) for size, share in pixels.items()}
    assert shares == pytest.approx({96: 0.2, 160: 0.3, 224: 0.5}, abs=1e-3)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[[160,0.5],[96,0.5]]", "sizes must rise to 224, the shorter edge"),
        ("[[96,0.5],[160,0.5]]", "sizes must rise to 224, the shorter edge"),
        ("[[96,0.5],[224,0.6]]", "fractions of the compute must sum to 1, not 1.1"),
    ],
)
def test_stages_that_cannot_be_are_refused(stages: str, message: str) -> None:
    words = ["algorithms=[progressive_resizing]", f"algorithms.progressive_resizing.stages={stages}"]
    with pytest.raises(UserError, match=message):
        check(Plan(compose(words).config, 1, 6400), {})


def test_nearest_resizing_selects_the_pixels_of_composer() -> None:
    """Composer passes a scale to PyTorch instead of a size, which makes 119 of 120 of 176, with other pixels."""
    images = torch.arange(176.0**2).view(1, 1, 176, 176)
    sizes = set()
    for size in range(88, 176, 4):
        expected = interpolate(images, scale_factor=size / 176, mode="nearest")
        assert torch.equal(resize(images, expected.shape[2:], "nearest", 4), expected)
        sizes.add(expected.shape[-1])
    assert sizes == {119, *range(88, 176, 4)} - {120}
    assert resize(images, (120, 119), "nearest", 4).shape[2:] == (120, 119)
