"""Whitening of the first convolution: its filters, which weights learn, and runs on several ranks."""

import itertools

import pytest
import torch

from launcher.algorithms.whitening import whitening_filters
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.launch.model_check import check_model
from launcher.plan.plan import plan_for
from tests.trainers import build, steps

DEEP = ["algorithms=[whitening]", "algorithms.whitening.images=8", "model=timm", "model.architecture=resnet18"]
DEEP += ["model.arguments.stem_type=deep", "model.arguments.channels=[8,8,8,8]"]
# A first convolution with a bias: 24 filters of patches of 2 x 2.
PATCHES = [
    "algorithms=[whitening]",
    "model=vit",
    "model.patch_size=2",
    "model.width=24",
    "model.heads=2",
    "model.depth=1",
]
PATCHES += ["dataset.native_size=16"]


def test_outputs_are_uncorrelated_with_variance_one() -> None:
    """So it whitens: E[(f x)(f x)^T] is the identity for each half of the filters f, without eps."""
    random = torch.Generator().manual_seed(0)
    values = (
        torch.randn(5000, 12, generator=random, dtype=torch.float64) @ torch.randn(12, 12, generator=random).double()
    )
    covariance = values.T @ values / len(values)
    filters = whitening_filters(covariance, torch.zeros(24, 12), 0.0)
    outputs = values @ filters[:12].T
    torch.testing.assert_close(outputs.T @ outputs / len(values), torch.eye(12, dtype=torch.float64))
    assert torch.equal(filters[12:], -filters[:12])
    few, norms = whitening_filters(covariance, torch.zeros(6, 12), 0.5), torch.linalg.norm(filters[:12], dim=1)
    assert torch.equal(norms, norms.sort()[0])  # note: the largest variance first
    scale = (1 / norms[:3] ** 2 + 0.5).rsqrt() / norms[:3]
    torch.testing.assert_close(few[:3], filters[:3] * scale[:, None])


@pytest.mark.parametrize(("outputs", "directions"), [(30, 12), (7, 3)])
def test_outputs_beyond_all_directions_are_drawn_ones_of_variance_one(outputs: int, directions: int) -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(5000, 12, generator=random).double() @ torch.randn(12, 12, generator=random).double()
    covariance, drawn = values.T @ values / len(values), torch.randn(outputs, 12, generator=random)
    filters = whitening_filters(covariance, drawn, 0.0)
    assert filters.shape == (outputs, 12)
    assert torch.equal(filters[directions : 2 * directions], -filters[:directions])
    others = filters[2 * directions :]
    variances = (others @ covariance @ others.T).diagonal()
    torch.testing.assert_close(variances, torch.ones(len(others), dtype=torch.float64))
    assert not torch.allclose(others, whitening_filters(covariance, drawn.flip(0), 0.0)[2 * directions :])


def test_filters_are_those_of_the_patches_of_training_images_of_all_classes() -> None:
    run = build(*PATCHES, "algorithms.whitening.images=20", "algorithms.whitening.eps=0.01")
    layer, dataset = run.train_step.model.embedding, run.config.dataset
    images = torch.cat([*run.loaders.train.spread(20)])
    samples = run.loaders.train.reader.samples
    assert torch.equal(images, torch.cat([*run.loaders.train.spread(samples)])[torch.arange(20) * samples // 20])
    images = images.double() / 255
    mean, std = (torch.tensor(one, dtype=torch.float64).view(1, 3, 1, 1) for one in (dataset.mean, dataset.std))
    images = (images - mean) / std
    assert images.shape == (20, 3, 16, 16)
    corners = [images[..., y::2, x::2] for y in (0, 1) for x in (0, 1)]
    patches = torch.stack(corners, dim=2).permute(0, 3, 4, 1, 2).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    expected = (vectors / (values + 0.01).sqrt()).T.flip(0)
    ours = layer.weight.detach().view(24, 12)[:12].double()
    torch.testing.assert_close(ours.abs(), expected.abs(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours @ ours.T, expected @ expected.T, rtol=1e-3, atol=1e-3)
    other = build(*PATCHES, "algorithms.whitening.images=8").train_step.model.embedding
    assert not torch.equal(other.weight, layer.weight)


def test_more_images_than_one_request_are_at_equal_distances() -> None:
    loader = build("dataset.train_samples=900", "dataset.native_size=16").loaders.train
    every = torch.cat([*loader.spread(2000)])
    assert len(every) == 900
    assert torch.equal(torch.cat([*loader.spread(300)]), every[::3])


def test_the_weight_never_learns_and_the_bias_does_at_first() -> None:
    run = build(*PATCHES, "algorithms.whitening.bias_until=5ba", "optimizer.weight_decay=0.1")
    layer = run.train_step.model.embedding
    weight, biases = layer.weight.clone(), []
    assert run.train_step.engine.changing_parameters == ["whitening"]
    for _ in range(8):
        steps(run, 1)
        biases.append(layer.bias.detach().clone())
    assert torch.equal(layer.weight, weight)
    moved = [not torch.equal(*pair) for pair in itertools.pairwise(biases)]
    assert moved == [True] * 4 + [False] * 3


@pytest.mark.parametrize("words", [[*PATCHES, "algorithms.whitening.bias_until=1dur"], ["algorithms=[whitening]"]])
def test_nothing_changes_while_a_run_trains_if_no_bias_stops_learning(words: list[str]) -> None:
    assert build(*words, "algorithms.whitening.images=8").train_step.engine.changing_parameters == []


@pytest.mark.parametrize("outputs", [8, 64])
def test_a_convolution_of_any_width_keeps_its_filters(outputs: int) -> None:
    layer = (run := build(*DEEP, f"model.arguments.stem_width={outputs}")).train_step.model.conv1[0]
    weight = layer.weight.clone()
    pairs = min(outputs // 2, 27)
    assert torch.equal(weight[pairs : 2 * pairs], -weight[:pairs])
    steps(run, 2)
    assert torch.equal(layer.weight, weight)


def test_a_model_without_such_a_layer_is_refused() -> None:
    plan = plan_for(compose([*DEEP, "model.arguments.stem_width=1", "dataset.native_size=32"]).config, 1)
    with pytest.raises(UserError, match="has no first convolution"):
        check_model(plan, {})
