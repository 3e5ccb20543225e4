"""RandAugment, TrivialAugment, AugMix, ColOut, CutOut and random erasing: what they draw, and the batch they leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from scipy import stats

from launcher.algorithms import augmix, colout, cutout, randaugment, random_erasing, trivialaugment
from launcher.algorithms.base import Algorithm, Setting
from launcher.config.compose import compose
from launcher.data.batch import Batch, Moment
from launcher.plan.plan import Plan

SIDE = 32


def bound(name: str, *words: str) -> Algorithm:
    config = compose([f"algorithms=[{name}]", *words]).config
    module = __import__(f"launcher.algorithms.{name}", fromlist=["ALGORITHM"])
    algorithm = module.ALGORITHM(getattr(config.algorithms, name), Setting(Plan(config, 1, 4000), 10))
    assert isinstance(algorithm, Algorithm)
    return algorithm


def batch_of(indices: np.ndarray, *, normalised: bool = False, epoch: int = 3) -> Batch:
    pixels = np.random.default_rng(0).integers(0, 256, (4000, SIDE, SIDE, 3), dtype=np.uint8)[indices]
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    if normalised:
        images = images.float() / 255 + 1
    targets = torch.from_numpy(indices % 10)
    return Batch(images, targets, indices, Moment(seed=5, epoch=epoch, step=77, total_steps=1000))


def changed(algorithm: Algorithm, batch: Batch) -> torch.Tensor:
    return algorithm.change_batch(batch, torch.nn.Identity(), lambda logits, targets: logits.sum()).images


@pytest.mark.parametrize("name", ["randaugment", "trivialaugment", "augmix", "cutout", "random_erasing"])
def test_a_pictures_change_depends_on_its_index_and_epoch_alone(name: str) -> None:
    words = ["algorithms.random_erasing.probability=1.0"] if name == "random_erasing" else []
    algorithm = bound(name, *words)
    normalised = name in ("cutout", "random_erasing")
    indices = np.arange(64)
    whole = changed(algorithm, batch_of(indices, normalised=normalised))
    order = np.random.default_rng(1).permutation(64)
    assert torch.equal(changed(algorithm, batch_of(indices[order], normalised=normalised)), whole[order])
    assert torch.equal(changed(algorithm, batch_of(indices, normalised=normalised)), whole)
    assert not torch.equal(changed(algorithm, batch_of(indices, normalised=normalised, epoch=4)), whole)


@pytest.mark.parametrize("name", ["randaugment", "trivialaugment", "augmix"])
def test_policies_keep_uint8_shape_and_memory_order(name: str) -> None:
    batch = batch_of(np.arange(16))
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    images = changed(bound(name), batch)
    assert images.dtype == torch.uint8
    assert images.shape == batch.images.shape
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_the_loader_form_of_randaugment_makes_the_device_forms_pictures() -> None:
    indices = np.arange(300)
    batch = batch_of(indices)
    device = changed(bound("randaugment", "algorithms.randaugment.depth=1"), batch)
    loader = bound("randaugment", "algorithms.randaugment.depth=1", "algorithms.randaugment.where=loader", "seed=5")
    for index in indices:
        picture = batch.images[index].permute(1, 2, 0).numpy()
        got = loader.change_image(picture, int(index), 3).astype(int)
        difference = np.abs(got - device[index].permute(1, 2, 0).numpy().astype(int))
        assert (difference > 1).mean() < 0.03, index


def test_randaugment_draws_operations_evenly_and_levels_as_asked() -> None:
    for distribution, expected in (("uniform", stats.uniform(0.1, 9.9)), ("normal", stats.norm(7, 0.5))):
        words = [
            "algorithms.randaugment.operations=all",
            f"algorithms.randaugment.severity_distribution={distribution}",
        ]
        severity = 10 if distribution == "uniform" else 7
        values = compose([*words, f"algorithms.randaugment.severity={severity}"]).config.algorithms.randaugment
        assert values is not None
        choice = randaugment.choose(values, np.arange(40_000), seed=1, epoch=0, side=224)[0]
        counts = np.bincount(choice.operations, minlength=13)
        assert stats.chisquare(counts).pvalue > 1e-4
        shears = choice.magnitudes[choice.operations == randaugment.SETS["all"].index("shear_x")]
        assert stats.kstest(np.abs(shears) / 0.03, expected.cdf).pvalue > 1e-4
        assert abs((shears > 0).mean() - 0.5) < 0.05


def test_a_depth_of_none_leaves_the_pictures() -> None:
    batch = batch_of(np.arange(8))
    assert torch.equal(changed(bound("randaugment", "algorithms.randaugment.depth=0"), batch), batch.images)


def test_trivialaugment_has_torchvisions_space() -> None:
    space = T.TrivialAugmentWide()._AUGMENTATION_SPACE
    part, plus = np.arange(31) / 30, np.ones(31)
    names = {"shear_x": "ShearX", "translate_y": "TranslateY", "rotate": "Rotate", "solarize": "Solarize"}
    for ours, theirs in names.items():
        expected = space[theirs][0](31, 224, 224).numpy() * (255 if theirs == "Solarize" else 1)
        np.testing.assert_allclose(trivialaugment.magnitudes(ours, part, plus), expected, rtol=1e-5)
    np.testing.assert_allclose(
        trivialaugment.magnitudes("color", part, plus), 1 + space["Color"][0](31, 9, 9), rtol=1e-5
    )
    np.testing.assert_array_equal(trivialaugment.magnitudes("posterize", part, plus), space["Posterize"][0](31, 9, 9))
    assert len(space) == len(trivialaugment.NAMES) + 1
    counts = np.bincount(trivialaugment.choose(np.arange(28_000), bins=31, seed=2, epoch=0).operations)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert len(counts) == 14


def test_augmix_weights_sum_to_one_and_mix_within_the_originals_range() -> None:
    values = compose(["algorithms.augmix=on"]).config.algorithms.augmix
    assert values is not None
    chosen = augmix.choose(values, np.arange(500), seed=3, epoch=0, side=SIDE)
    np.testing.assert_allclose(chosen.chains.sum(1), 1)
    assert stats.kstest(chosen.mixed, "uniform").pvalue > 1e-4
    empty = augmix.Mix(chosen.chains[:4], np.zeros(4), [[] for _ in chosen.rounds])
    images = batch_of(np.arange(4)).images
    assert torch.equal(augmix.mix(images, empty), images)


def test_colout_keeps_sorted_rows_and_columns_of_all_pictures_alike() -> None:
    batch = batch_of(np.arange(8))
    rows = torch.arange(SIDE).view(1, 1, SIDE, 1).expand(8, 3, SIDE, SIDE).to(torch.uint8)
    algorithm = bound("colout", "algorithms.colout.rows=0.1", "algorithms.colout.columns=0.25")
    images = changed(algorithm, batch.having(images=rows))
    assert images.shape == (8, 3, 28, 24)
    kept = images[0, 0, :, 0].tolist()
    assert kept == sorted(set(kept))
    assert (images == images[:1, :1, :, :1]).all()
    assert torch.equal(changed(algorithm, batch.having(images=rows)), images)
    often = [colout.kept(20, 0.05, np.random.default_rng(seed)) for seed in range(2000)]
    assert stats.chisquare(np.bincount(np.concatenate(often), minlength=20)).pvalue > 1e-4


def test_cutout_blanks_a_clipped_square_around_the_centre() -> None:
    boxes = cutout.square_boxes(np.array([[0.0, 0.0], [0.5, 0.5], [0.999, 0.2]]), 8, SIDE, SIDE)
    assert boxes.tolist() == [[0, 0, 4, 4], [12, 12, 20, 20], [27, 2, 32, 10]]
    erased = cutout.erase(torch.ones(3, 3, SIDE, SIDE), torch.from_numpy(boxes))
    assert (erased[:, 0] == 0).sum((1, 2)).tolist() == [16, 64, 40]


def test_random_erasing_draws_torchvisions_boxes() -> None:
    count, side = 4000, 64
    draws = np.random.default_rng(4).random((count, 41))
    boxes = random_erasing.random_boxes(draws, 0.5, [0.02, 0.33], [0.3, 3.3], side, side)
    area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))[boxes[:, 2] > 0]
    torch.manual_seed(0)
    theirs = T.RandomErasing(p=0.5, scale=(0.02, 0.33), ratio=(0.3, 3.3))
    blanked = torch.stack([(theirs(torch.ones(1, side, side)) == 0).sum() for _ in range(count)]).numpy()
    assert abs(len(area) / count - (blanked > 0).mean()) < 0.04
    assert stats.ks_2samp(area, blanked[blanked > 0]).pvalue > 1e-3


def test_random_erasing_noise_is_normal_and_keyed() -> None:
    words = ["algorithms.random_erasing.probability=1.0", "algorithms.random_erasing.fill=noise"]
    batch = batch_of(np.arange(200), normalised=True)
    images = changed(bound("random_erasing", *words), batch)
    noise = images[images != batch.images]
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
    assert torch.equal(images, changed(bound("random_erasing", *words), batch))
