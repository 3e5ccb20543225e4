"""RandAugment, TrivialAugment and AugMix: their draws and their batches."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import timm.data.auto_augment as timm_operations
import torch
from scipy import stats

from launcher.algorithms import augmix, randaugment
from launcher.algorithms.base import Algorithm, Context
from launcher.algorithms.engine import build
from launcher.config.compose import compose
from launcher.data.batch import Batch, Moment
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from tests.transforms import operate, transformed

SIZE = 32


def bound(name: str, *words: str) -> Algorithm:
    config = compose([f"algorithms=[{name}]", *words]).config
    return build(Context(Plan(config, 1, 4000), 10))[name]


def batch_of(indices: np.ndarray, *, normalized: bool = False, epoch: int = 3) -> Batch:
    pixels = np.random.default_rng(0).integers(0, 256, (4000, SIZE, SIZE, 3), dtype=np.uint8)[indices]
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    if normalized:
        images = images.float() / 255 + 1
    targets = torch.from_numpy(indices % 10)
    return Batch(images, targets, indices, Moment(seed=5, epoch=epoch, step=77, total_steps=1000))


def changed(algorithm: Algorithm, batch: Batch) -> torch.Tensor:
    return transformed(algorithm, batch).inputs


@pytest.mark.parametrize("name", ["randaugment", "trivialaugment", "augmix", "cutout", "random_erasing"])
def test_an_images_change_only_depends_on_its_index_and_epoch(name: str) -> None:
    words = ["algorithms.random_erasing.probability=1.0"] if name == "random_erasing" else []
    algorithm = bound(name, *words)
    normalized = name in ("cutout", "random_erasing")
    indices = np.arange(64)
    whole = changed(algorithm, batch_of(indices, normalized=normalized))
    order = np.random.default_rng(1).permutation(64)
    assert torch.equal(changed(algorithm, batch_of(indices[order], normalized=normalized)), whole[order])
    assert torch.equal(changed(algorithm, batch_of(indices, normalized=normalized)), whole)
    assert not torch.equal(changed(algorithm, batch_of(indices, normalized=normalized, epoch=4)), whole)


@pytest.mark.parametrize("name", ["randaugment", "trivialaugment", "augmix"])
def test_policies_keep_type_shape_and_memory_order(name: str) -> None:
    batch = batch_of(np.arange(16))
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
    images = changed(bound(name), batch)
    assert images.dtype == torch.uint8
    assert images.shape == batch.inputs.shape
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_a_list_of_severities_has_one_for_each_part_of_the_run() -> None:
    words = ["epochs=8", "algorithms.randaugment.severity_distribution=fixed"]
    listed = bound("randaugment", *words, "algorithms.randaugment.severity=[0.0,3.0,6.0,9.0]")
    for step, severity in ((0, 0.0), (123, 0.0), (124, 3.0), (371, 6.0), (372, 9.0), (495, 9.0)):
        single = bound("randaugment", *words, f"algorithms.randaugment.severity={severity}")
        batch = replace(batch_of(np.arange(16)), moment=Moment(0, 0, step, 500))
        ours, theirs = (one.change_batch(batch, (SIZE, SIZE)) for one in (listed, single))
        assert all(map(np.array_equal, ours.arrays, theirs.arrays))
    words = ["algorithms=[randaugment]", "algorithms.randaugment.severity=[1.0,2.0]"]
    with pytest.raises(UserError, match="needs where=device"):
        check(Plan(compose([*words, "algorithms.randaugment.where=loader"]).config, 1, 4000), {})


def test_randaugment_draws_operations_uniformly_and_levels_by_the_config() -> None:
    for more, expected in (
        (["severity_distribution=uniform", "severity=10"], stats.uniform(0.1, 9.9)),
        (["severity_distribution=normal", "severity=7.5"], stats.norm(7.5, 0.5)),
        (["severity_distribution=normal", "severity=5", "severity_deviation=1.2"], stats.norm(5, 1.2)),
    ):
        words = [f"algorithms.randaugment.{word}" for word in ("operations=all", *more)]
        values = compose(words).config.algorithms["randaugment"]
        choice = randaugment.choose(values, np.arange(40_000), seed=1, epoch=0, size=224)[0]
        counts = np.bincount(choice.operations, minlength=13)
        assert stats.chisquare(counts).pvalue > 1e-4
        shears = choice.magnitudes[choice.operations == list(randaugment.SETS["all"]).index("shear_x")]
        assert stats.kstest(np.abs(shears) / 0.03, expected.cdf).pvalue > 1e-4
        assert abs((shears > 0).mean() - 0.5) < 0.05


def factors(name: str, operations: str, severity: float, *, distribution: str = "uniform") -> np.ndarray:
    """Return the magnitudes of an operation for many images."""
    words = [
        f"algorithms.randaugment.operations={operations}",
        f"algorithms.randaugment.severity={severity}",
        f"algorithms.randaugment.severity_distribution={distribution}",
    ]
    values = compose(["algorithms.randaugment=on", *words]).config.algorithms["randaugment"]
    choice = randaugment.choose(values, np.arange(100_000), seed=6, epoch=0, size=224)[0]
    drawn: np.ndarray = choice.magnitudes[choice.operations == list(randaugment.SETS[operations]).index(name)]
    return drawn


@pytest.mark.parametrize("distribution", ["uniform", "fixed"])
@pytest.mark.parametrize("severity", [3.0, 7.0, 10.0])
@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_the_set_all_draws_enhancements_from_the_severity(name: str, severity: float, distribution: str) -> None:
    factor = 0.75 if name == "brightness" else 1.0

    def expected(x: np.ndarray) -> np.ndarray:
        less = stats.uniform(1 - 0.09 * severity, 0.09 * severity).cdf(x)
        return np.asarray(0.5 * less + 0.5 * stats.uniform(factor, factor * (severity - 1)).cdf(x))

    drawn = factors(name, "all", severity, distribution=distribution)
    assert stats.kstest(drawn, expected).pvalue > 1e-4
    assert drawn.max() > 0.99 * factor * severity


@pytest.mark.parametrize("severity", [3.0, 7.0, 10.0])
@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_the_set_original_draws_enhancements_from_a_level(name: str, severity: float) -> None:
    drawn = factors(name, "original", severity)
    assert stats.kstest(drawn, stats.uniform(0.1 + 0.018, 0.18 * (severity - 0.1)).cdf).pvalue > 1e-4


@pytest.mark.parametrize("operations", ["all", "original", "safe"])
def test_nine_operations_draw_their_level_in_each_published_set(operations: str) -> None:
    level = stats.uniform(0.1, 6.9)
    for name, scale in {"shear_x": 0.03, "shear_y": 0.03}.items():
        assert stats.kstest(np.abs(factors(name, operations, 7.0)) / scale, level.cdf).pvalue > 1e-4
    steps = np.arange(256 - 179, 257)
    expected = {"solarize": steps, "rotate": np.arange(21), "translate_x": np.arange(53), "posterize": np.arange(2, 5)}
    for name, values in expected.items():
        assert np.isin(np.abs(factors(name, operations, 7.0)), values).all(), name
        assert np.unique(np.abs(factors(name, operations, 7.0))).size >= 0.9 * len(values), name
    assert len(randaugment.SETS[operations]) == (9 if operations == "safe" else 13)


@pytest.mark.parametrize("operations", ["all", "original", "safe", "timm_increasing"])
def test_posterize_keeps_no_bits_at_the_highest_level(operations: str) -> None:
    """As int(10 * 4 / 10) bits fewer than four, in Composer and in timm's `inc1`; the image is black."""
    name, parts = "posterize", np.array([0.999, 1.0])
    bits = randaugment.SETS[operations][name](parts, np.ones(2), 224)
    assert bits.tolist() == [1, 0]
    assert timm_operations.LEVEL_TO_ARG["PosterizeIncreasing"](10, {}) == (0,)
    black = operate(name, torch.full((1, 3, 4, 4), 200, dtype=torch.uint8), torch.zeros(1), (0, 0, 0))
    assert not black.any()


def timm_name(name: str) -> str:
    camel = "".join(part.capitalize() for part in name.split("_")).replace("Autoc", "AutoC")
    return next(n for n in (f"{camel}Increasing", f"{camel}Rel", camel) if n in timm_operations.NAME_TO_OP)


@pytest.mark.parametrize(("recipe", "text"), [("timm_a2", "rand-m7-mstd0.5-inc1"), ("timm_a3", "rand-m6-mstd0.5-inc1")])
def test_the_recipes_of_timm_draw_as_timm_does(recipe: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = compose([f"recipe={recipe}"]).config.algorithms["randaugment"]
    names = randaugment.SETS[values.operations]
    theirs = {operation.name: operation for operation in timm_operations.rand_augment_transform(text).ops}
    assert set(map(timm_name, names)) == theirs.keys()
    rounds = randaugment.choose(values, np.arange(60_000), seed=1, epoch=0, size=224)
    assert len(rounds) == timm_operations.rand_augment_transform(text).num_layers
    counts = np.bincount(rounds[1].operations, minlength=len(names) + 1)
    chances = [*([theirs["Invert"].prob / len(names)] * len(names)), 1 - theirs["Invert"].prob]
    assert stats.chisquare(counts, np.array(chances) * len(rounds[1].operations)).pvalue > 1e-4
    monkeypatch.setattr(timm_operations, "random", random.Random(3))
    for number, name in enumerate(names):
        drawn: list[float] = []
        operation = theirs[timm_name(name)]
        operation.aug_fn = lambda image, *arguments, drawn=drawn, **_: drawn.extend(arguments)
        for _ in range(5000):
            operation(None)
        ours = rounds[0].magnitudes[rounds[0].operations == number]
        if drawn:
            scale = 224 if name.startswith("translate") else 1
            assert stats.ks_2samp(ours, np.array(drawn) * scale).pvalue > 1e-4, name


AUTOAUGMENT = ["algorithms.randaugment.operations=autoaugment", "algorithms.randaugment.severity_distribution=fixed"]


@pytest.mark.parametrize("level", [1, 5, 10])
def test_the_set_autoaugment_has_the_magnitudes_of_its_code(level: int) -> None:
    """They are level / 10 of the largest; geometric ones have either sign, and all 16 operations are equally likely."""
    fraction = level / 10
    enhanced = dict.fromkeys(("color", "contrast", "brightness", "sharpness"), 1.8 * fraction + 0.1)
    expected = {
        **{"rotate": 30 * fraction, "shear_x": 0.3 * fraction, "shear_y": 0.3 * fraction},
        **{"translate_x": int(100 * fraction), "translate_y": int(100 * fraction), "cutout": int(40 * fraction)},
        **{"posterize": int(4 * fraction), "solarize": int(256 * fraction), "solarize_add": int(110 * fraction)},
        **enhanced,
        **dict.fromkeys(("autocontrast", "equalize", "invert"), 0.0),
    }
    signed = {name for name in expected if name.startswith(("rotate", "shear", "translate"))}
    words = [*AUTOAUGMENT, f"algorithms.randaugment.severity={level}", "algorithms.randaugment.depth=2"]
    values = compose(["algorithms.randaugment=on", *words]).config.algorithms["randaugment"]
    names = randaugment.SETS["autoaugment"]
    assert (set(names), len(names)) == (expected.keys(), 16)
    for choice in randaugment.choose(values, np.arange(20_000), seed=3, epoch=0, size=224):
        assert stats.chisquare(np.bincount(choice.operations, minlength=16)).pvalue > 1e-4
        for number, name in enumerate(names):
            drawn = choice.magnitudes[choice.operations == number]
            assert np.allclose(np.abs(drawn) if name in signed else drawn, expected[name]), name
            assert abs((drawn > 0).mean() - 0.5) < 0.1 or name not in signed, name


def test_the_set_autoaugment_cuts_clipped_squares_around_uniform_centres(bound: Callable[..., Any]) -> None:
    algorithm, indices = bound("randaugment", *AUTOAUGMENT), np.arange(60_000)
    batch = Batch(torch.empty(1).expand(60_000, 3, 224, 224), torch.zeros(60_000), indices, Moment(4, 2, 0, 1))
    boxes = algorithm.change_batch(batch, (224, 224)).arrays[-1]
    (choice,) = randaugment.choose(algorithm, indices, seed=4, epoch=2, size=224)
    cut = choice.operations == list(randaugment.SETS["autoaugment"]).index("cutout")
    assert (boxes[~cut, :2] == boxes[~cut, 2:]).all()
    top, left, bottom, right = boxes[cut].T
    for low, high in ((top, bottom), (left, right)):
        assert (low.min(), high.max()) == (0, 224)
        whole = (low > 0) & (high < 224)
        assert (high[whole] - low[whole] == 80).all()
        centres = np.where(low > 0, low + 40, high - 40)
        assert stats.chisquare(np.bincount(centres, minlength=224)).pvalue > 1e-4


@pytest.mark.parametrize(
    ("words", "fill"),
    [
        (["algorithms.randaugment.depth=1"], None),
        (["algorithms.randaugment.operations=timm_increasing", "dataset=imagenet"], (124, 116, 104)),
        (AUTOAUGMENT, (128, 128, 128)),
    ],
)
def test_randaugment_makes_the_same_images_in_the_loader_and_on_the_device(
    words: list[str], fill: tuple[int, int, int] | None
) -> None:
    """For noise, or for white images that show the fill colour outside and in cut boxes."""
    depth = ["algorithms.randaugment.depth=2"] if fill else []
    batch = batch_of(np.arange(300))
    if fill:
        batch = replace(batch, inputs=torch.full_like(batch.inputs, 255))
    device = changed(bound("randaugment", *words, *depth), batch)
    assert device.is_contiguous(memory_format=torch.channels_last)
    if fill:
        filled = (device == torch.tensor(fill, dtype=torch.uint8).view(1, 3, 1, 1)).all(1).flatten(1).sum(1)
        assert filled.any()
        assert words != AUTOAUGMENT or (filled == (2 * (40 * SIZE // 224)) ** 2).any()
    loader = bound("randaugment", *words, *depth, "algorithms.randaugment.where=loader", "seed=5")
    for index, (image, expected) in enumerate(zip(batch.inputs, device, strict=True)):
        result = loader.change_image(image.permute(1, 2, 0).numpy(), index, batch.moment)
        assert np.array_equal(result, expected.permute(1, 2, 0).numpy()), index


@pytest.mark.parametrize(
    ("severity", "alpha", "width", "depth", "lengths"), [(3.0, 1.0, 3, -1, {1, 2, 3}), (7.5, 0.5, 2, 2, {2})]
)
def test_augmix_draws_as_published_and_a_weight_of_0_keeps_images(
    severity: float, alpha: float, width: int, depth: int, lengths: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"severity": severity, "alpha": alpha, "width": width, "depth": depth}
    words = [f"algorithms.augmix.{key}={value}" for key, value in values.items()]
    levels = mock.Mock(side_effect=augmix.magnitudes)
    monkeypatch.setattr(augmix, "magnitudes", levels)
    config = compose(words).config.algorithms["augmix"]
    weights, rounds = augmix.choose(config, np.arange(2000), seed=3, epoch=0, size=SIZE)
    drawn_levels = np.concatenate([call.args[1] for call in levels.call_args_list])
    assert stats.kstest(drawn_levels, stats.uniform(0.1, severity - 0.1).cdf).pvalue > 1e-4
    assert len(weights) == 1 + width
    np.testing.assert_allclose(weights[1:].sum(0), 1)
    assert stats.kstest(weights[0], stats.beta(alpha, alpha).cdf).pvalue > 1e-4
    for chain in weights[1:]:  # whose weight in a Dirichlet distribution is this
        assert stats.kstest(chain, stats.beta(alpha, (width - 1) * alpha).cdf).pvalue > 1e-4
    drawn = sum((choice.operations < len(randaugment.SETS["safe"])).astype(int) for choice in rounds)
    assert set(np.asarray(drawn).tolist()) == lengths
    weights[0] = 0
    images = batch_of(np.arange(4)).inputs
    assert torch.equal(augmix.mix(images, [torch.from_numpy(weights[:, :4])]), images)


@pytest.mark.parametrize(("where", "point", "other"), [("device", "batch", "image"), ("loader", "image", "batch")])
def test_randaugment_acts_where_the_config_sets_it(where: str, point: str, other: str) -> None:
    values = compose([f"algorithms.randaugment.where={where}"]).config.algorithms["randaugment"]
    assert values.place(f"change_{point}") is not None
    assert values.place(f"change_{other}") is None
