"""Machines by name, lengths for a quality, and the Pareto front of offers."""

import pytest

from launcher.errors import UserError
from launcher_lab.predict.machines import machine_named
from launcher_lab.predict.offers import length_for
from launcher_lab.study.curves import Curve, CurvePoint, StudySetting
from launcher_lab.study.published import published_curves

SETTING = StudySetting("imagenet", "resnet50", "8x NVIDIA A100")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("p5_48xlarge", "p5_48xlarge"),
        ("8xA100", "lambda_8x_a100"),
        ("8xA100 80GB", "lambda_8x_a100_80gb"),
        ("1xA100", "lambda_1x_a100"),
        ("8xh100", "lambda_8x_h100"),
        ("8xH100-80", "lambda_8x_h100"),
        ("1xRTX 4090", "runpod_1x_rtx4090"),
        ("1xrtx4090", "runpod_1x_rtx4090"),
        ("1x5090", "runpod_1x_rtx5090"),
        ("1xRTX6000-Ada", "runpod_1x_rtx6000_ada"),
        ("1xA10G", "g5_xlarge"),
        ("1xL4", "g6_xlarge"),
        ("4xA100", "a2_highgpu_4g"),
    ],
)
def test_a_word_selects_a_machine_or_the_cheapest_with_such_gpus(word: str, name: str) -> None:
    assert machine_named(word) == name


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("8xH20O", "did you mean 8xH200?"),
        ("3xH100", "did you mean 1xH100?"),
        ("8xQ900", "or 1xA100, 1xA10G, 1xB200"),
        ("1xA10", "did you mean 1xA10"),
        ("1xL40", "no such machine"),
        ("1xRTX", "no such machine"),
        ("", "no such machine"),
    ],
)
def test_an_unknown_machine_is_refused_with_the_nearest(word: str, message: str) -> None:
    with pytest.raises(UserError, match="no such machine") as error:
        machine_named(word)
    assert message in str(error.value)


def curve(*points: tuple[int, float], source: str | None = None) -> Curve:
    points_of_curve = tuple(
        CurvePoint(epochs, (top1,), {"epochs": (epochs,), "time": (2.0 * epochs,)}) for epochs, top1 in points
    )
    return Curve("mild", "mild", SETTING, points_of_curve, source)


def test_a_length_is_interpolated_on_the_users_own_curve() -> None:
    own = curve((16, 74.0), (64, 78.0))
    length = length_for(76.0, "mild", [*published_curves(), own])
    assert length.epochs == pytest.approx(32)
    assert length.source == "own runs: mild on 8x NVIDIA A100"
    assert length_for(78.0, "mild", [own]).epochs == 64


def test_published_minutes_are_used_where_no_length_is_printed() -> None:
    length = length_for(76.6, "mild", published_curves())
    assert (length.epochs, length.minutes, length.hardware) == (None, pytest.approx(25.3), "8x A100 80GB")
    hot = length_for(80.78, "hot", published_curves())
    assert hot.epochs == pytest.approx(450)


@pytest.mark.parametrize(("recipe", "quality"), [("mild", 90.0), ("mild", 50.0), ("nothing", 76.0)])
def test_a_quality_that_no_curve_spans_is_refused(recipe: str, quality: float) -> None:
    with pytest.raises(UserError, match=r"reach 75.9 to 78.1 %|no published point"):
        length_for(quality, recipe, published_curves())
