"""ColOut, CutOut and random erasing: their draws and their batches."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from scipy import stats

from launcher.algorithms import colout, cutout, random_erasing
from launcher.algorithms.base import Algorithm
from launcher.data.batch import Batch
from tests.transforms import transformed

SIZE = 32

Bound = Callable[..., Algorithm]
MakeBatch = Callable[..., Batch]


def changed(algorithm: Algorithm, batch: Batch) -> torch.Tensor:
    return transformed(algorithm, batch).inputs


def test_colout_keeps_the_same_sorted_rows_and_columns_of_all_images(bound: Bound, batch: MakeBatch) -> None:
    loaded = batch(size=SIZE)
    rows = torch.arange(SIZE).view(1, 1, SIZE, 1).expand(8, 3, SIZE, SIZE).to(torch.uint8)
    algorithm = bound("colout", rows=0.1, columns=0.25)
    images = changed(algorithm, replace(loaded, inputs=rows))
    assert images.shape == (8, 3, 28, 24)
    kept_rows = images[0, 0, :, 0].tolist()
    assert kept_rows == sorted(set(kept_rows))
    assert (images == images[:1, :1, :, :1]).all()
    assert torch.equal(changed(algorithm, replace(loaded, inputs=rows)), images)
    draws = [colout.draw_kept(20, 0.05, np.random.default_rng(seed)) for seed in range(2000)]
    assert stats.chisquare(np.bincount(np.concatenate(draws), minlength=20)).pvalue > 1e-4


def test_cutout_blanks_a_clipped_square_around_the_centre() -> None:
    boxes = cutout.square_boxes(np.array([[0.0, 0.0], [0.5, 0.5], [0.999, 0.2]]), 8, SIZE, SIZE)
    assert boxes.tolist() == [[0, 0, 4, 4], [12, 12, 20, 20], [27, 2, 32, 10]]
    erased = cutout.erase(torch.ones(3, 3, SIZE, SIZE), torch.from_numpy(boxes))
    assert (erased[:, 0] == 0).sum((1, 2)).tolist() == [16, 64, 40]


def test_an_odd_cutout_square_is_one_pixel_smaller_as_published(bound: Bound, batch: MakeBatch) -> None:
    # DeVries & Taylor's code: clip(centre - length // 2) to clip(centre + length // 2)
    assert cutout.square_boxes(np.array([[0.5, 0.5]]), 7, SIZE, SIZE).tolist() == [[13, 13, 19, 19]]
    erased = changed(bound("cutout", size=0.25), batch(200, SIZE))
    assert (erased[:, 0] == 0).sum((1, 2)).max() == 64
    odd = batch(200, SIZE)
    odd = replace(odd, inputs=odd.inputs[..., :30, :30])
    assert (changed(bound("cutout", size=0.25), odd)[:, 0] == 0).sum((1, 2)).max() == 36


def test_random_erasing_draws_boxes_as_torchvision_does() -> None:
    count, size = 4000, 64
    draws = np.random.default_rng(4).random((count, 41))
    boxes = random_erasing.random_boxes(draws, 0.5, [0.02, 0.33], [0.3, 3.3], size, size)
    area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))[boxes[:, 2] > 0]
    torch.manual_seed(0)
    theirs = T.RandomErasing(p=0.5, scale=(0.02, 0.33), ratio=(0.3, 3.3))
    blanked = torch.stack([(theirs(torch.ones(1, size, size)) == 0).sum() for _ in range(count)]).numpy()
    assert abs(len(area) / count - (blanked > 0).mean()) < 0.04
    assert stats.ks_2samp(area, blanked[blanked > 0]).pvalue > 1e-3


def test_the_noise_of_random_erasing_is_normal_and_repeatable(bound: Bound, batch: MakeBatch) -> None:
    loaded = batch(200, SIZE)
    images, again = (changed(bound("random_erasing", probability=1.0, fill="noise"), loaded) for _ in range(2))
    noise = images[images != loaded.inputs]
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
    assert torch.equal(images, again)


def test_random_erasing_uses_its_probability_area_and_ratio(bound: Bound, batch: MakeBatch) -> None:
    """A quarter of the images lose a ninth of their area, as rectangles four times as tall as wide."""
    loaded = replace(batch(400, SIZE), inputs=torch.ones(400, 3, SIZE, SIZE))
    values = {"probability": 0.25, "area": [1 / 9, 1 / 9], "ratio": [4.0, 4.0], "fill": "zero"}
    erased = changed(bound("random_erasing", **values), loaded)[:, 0] == 0
    tall, wide = erased.any(2).sum(1), erased.any(1).sum(1)
    assert {*zip(tall.tolist(), wide.tolist(), strict=True)} == {(0, 0), (round(SIZE * 2 / 3), round(SIZE / 6))}
    assert abs((tall > 0).float().mean() - 0.25) < 0.07


@pytest.mark.parametrize("other", [{"step": 1}, {"rank": 1}, {"seed": 1}])
def test_each_step_and_rank_erases_by_its_own_noise(bound: Bound, batch: MakeBatch, other: dict[str, int]) -> None:
    algorithm, loaded = bound("random_erasing", probability=1.0, fill="noise"), batch(20, SIZE)
    boxes = torch.tensor([[0, 0, SIZE, SIZE]]).expand(20, 4)
    fills = [
        algorithm._erase(replace(loaded, moment=moment), boxes).inputs
        for moment in (loaded.moment, replace(loaded.moment, **other))
    ]
    assert abs(np.corrcoef(*(fill.flatten().numpy() for fill in fills))[0, 1]) < 0.02
    noise = fills[0].flatten(1).numpy()
    assert abs(np.corrcoef(noise) - np.eye(20)).max() < 0.1
