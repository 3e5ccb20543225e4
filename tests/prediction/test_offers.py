"""Machines by name, lengths for a quality, and the Pareto front of offers."""

import numpy as np
import pytest

from launcher.config.compose import compose
from launcher.config.gpus import efficiencies
from launcher.errors import UserError
from launcher.measure.estimate import Estimate, Span
from launcher.plan.plan import Plan, plan_for
from launcher.prediction.lengths import length_for
from launcher.prediction.machines import machine_named, rented
from launcher.prediction.offers import best_interval, offers
from launcher.prediction.prediction import Prediction
from launcher.results.curves import Curve, CurvePoint, StudySetting
from launcher.results.published import published_curves

pytestmark = pytest.mark.slow

SETTING = StudySetting("imagenet", "resnet50", "8x NVIDIA A100")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("p5_48xlarge", "p5_48xlarge"),
        ("8xA100", "lambda_8x_a100"),
        ("8xH100-80", "lambda_8x_h100"),
        ("1xRTX 4090", "runpod_1x_rtx4090"),
        ("1x5090", "runpod_1x_rtx5090"),
        ("1xA10G", "g5_xlarge"),
        ("G5-12xlarge", "g5_12xlarge"),
        ("BM.GPU4.8", "bm_gpu4_8"),
    ],
)
def test_a_word_selects_a_machine_or_the_cheapest_with_such_gpus(word: str, name: str) -> None:
    assert machine_named(word) == (1, name)


@pytest.mark.parametrize(
    ("word", "nodes", "name"),
    [
        ("2xp4d_24xlarge", 2, "p4d_24xlarge"),
        ("16xH200", 2, "nebius_8x_h200"),
        ("32xL4", 4, "g2_standard_96"),
        ("2 x p5.48xlarge", 2, "p5_48xlarge"),
    ],
)
def test_a_word_selects_several_machines(word: str, nodes: int, name: str) -> None:
    """Those of most GPUs with a known network, the cheapest first."""
    assert machine_named(word) == (nodes, name)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("8xH20O", "did you mean 8xH200?"),
        ("0xH100", "no such machine"),
        ("3xH100", "did you mean 1xH100, 8xH100?"),
        ("g6", "did you mean g6_12xlarge, "),
        ("h200", "did you mean 1xH200, 8xH200"),
        ("A100:4", "did you mean"),
        ("2xp5", "did you mean p5_48xlarge, p5_4xlarge, p5en_48xlarge?"),
        ("p5.48xlrage", "did you mean p5_48xlarge?"),
        ("8xQ900", "or 1xA100, 1xA10G, 1xB200"),
        ("1xA10", "did you mean 1xA10"),
        ("1xL40", "no such machine"),
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


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Let an epoch on published machines take 0.7 minutes, and return for which they are predicted."""
    predicted = []
    monkeypatch.setattr("launcher.prediction.lengths._epoch_minutes", lambda *words: predicted.append(words) or 0.7)
    return predicted


def test_a_length_is_interpolated_on_the_users_own_curve(minutes: list[tuple[str, str]]) -> None:
    own = curve((16, 74.0), (64, 78.0))
    length = length_for(76.0, "mild", [*published_curves(), own])
    assert (length.epochs, length.source) == (32, "own runs: mild on 8x NVIDIA A100")
    assert length_for(78.0, "mild", [own]).epochs == 64
    assert not minutes


def test_published_minutes_are_used_where_no_length_is_printed(minutes: list[tuple[str, str]]) -> None:
    length = length_for(76.6, "mild", published_curves())
    assert {*minutes} == {("mild", "8x A100 80GB")}
    assert length.epochs == 36
    assert length.source.endswith("mild on 8x A100 80GB, its minutes at the throughput predicted there")
    assert length_for(80.78, "hot", published_curves()).epochs == 450


@pytest.mark.parametrize(("recipe", "quality"), [("mild", 90.0), ("mild", 50.0), ("nothing", 76.0)])
@pytest.mark.usefixtures("minutes")
def test_a_quality_that_no_curve_spans_is_refused(recipe: str, quality: float) -> None:
    with pytest.raises(UserError, match=r"reach 75.9 to 78.1 %|no published point"):
        length_for(quality, recipe, published_curves())


def spot_run(hours: float, save: float, interval: float) -> tuple[Plan, Prediction]:
    """A run of so many hours of training, with checkpoints of so many seconds, so many seconds apart."""
    every = (f"checkpoint.every_minutes={interval / 60}", "checkpoint.every=1000000ba")
    plan = plan_for(compose(["recipe=mild", "dataset=imagenet", *every]).config, 8)
    training, checkpoints = 3600 * hours, max(1, int(3600 * hours / interval))
    spans = [Span(seconds, seconds, seconds) for seconds in (training, 0.0, save * checkpoints)]
    wall = training + save * checkpoints
    estimate = Estimate(*spans, Span(wall, wall, wall), 0.0, 1, checkpoints, [], 1000.0)
    return plan, Prediction(rented()["p4d_24xlarge"], estimate, [], 8.0, True, "")


def simulated(hours: float, save: float, interval: float, runs: int) -> float:
    """Return the mean seconds of runs whose machine is preempted at random."""
    random = np.random.default_rng(3)
    assumed = efficiencies()["spot"]
    mean, restart = 3600 / assumed["interruptions_an_hour"], 60 * assumed["minutes_until_restart"]
    total = 0.0
    for _ in range(runs):
        done, ahead = 0.0, random.exponential(mean)
        while done < 3600 * hours:
            step = min(interval, 3600 * hours - done) + save
            if ahead < step:
                total += ahead + restart
                ahead = random.exponential(mean)
            else:
                total, ahead, done = total + step, ahead - step, done + step - save
    return total / runs


@pytest.mark.parametrize(("save", "interval"), [(5, 300), (5, 3600), (60, 900), (60, 7200)])
def test_the_time_of_a_spot_machine_is_that_of_simulated_preemptions(save: float, interval: float) -> None:
    _, spot = offers(*spot_run(24, save, interval))
    assert spot.wall.seconds == pytest.approx(simulated(24, save, interval, 3000), rel=0.015)


@pytest.mark.parametrize("save", [2.0, 30.0, 120.0])
def test_the_best_interval_of_checkpoints_loses_the_least_in_simulated_preemptions(save: float) -> None:
    plan, prediction = spot_run(24, save, 600)
    best = best_interval(plan, prediction)
    lost = {factor: simulated(24, save, factor * best, 4000) for factor in (0.25, 1.0, 4.0)}
    assert min(lost, key=lost.__getitem__) == 1.0
