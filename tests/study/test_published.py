"""The published points and speed-ups, as the command gives them."""

from __future__ import annotations

import json

import pytest

from launcher.cli import main as cli
from launcher.study.published import published_curves, stated_speedups


@pytest.mark.parametrize(
    ("claim", "stated", "minutes"),
    [
        ("mild over baseline at 76.6 %", 7.1, (180, 25.3)),
        ("mild over timm A3 at 78.1 %, MosaicML Cloud", 2.5, (131, 52.4)),
        ("hot at 80.0 % over timm A2 at 79.8 %", 1.77, (501, 284)),
        ("medium at 79.4 % over ffcv-imagenet at 78.4 %", 1.3, (77.2, 60.4)),
    ],
)
def test_stated_speed_ups_follow_from_the_points(claim: str, stated: float, minutes: tuple[float, float]) -> None:
    (found,) = (one for one in stated_speedups() if one.claim == claim)
    assert (found.stated, found.slow_minutes, found.fast_minutes) == (stated, *minutes)
    assert found.computed == pytest.approx(minutes[0] / minutes[1])
    assert found.follows
    assert bool(found.derived) == ("MosaicML Cloud" in claim)


def test_the_one_that_does_not_follow_is_told_so() -> None:
    """The source says 3.8x for 334 minutes against 56, which are 5.96x."""
    (found,) = (one for one in stated_speedups() if "p4d" in one.claim)
    assert (found.stated, found.slow_minutes, found.fast_minutes) == (3.8, 334, 56)
    assert found.computed == pytest.approx(5.964, abs=1e-3)
    assert not found.follows


def test_the_curves_give_the_speed_ups_by_interpolation(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--published", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    values = {(c["curve"], c["baseline"], c["at"]): c["value"] for c in answer["comparisons"] if c["value"]}
    assert values["mild", "baseline", 76.6]["value"] == pytest.approx(180 / 25.3)
    assert cli.main(["compare", "--published", "--json", "--baseline", "timm_a3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    values = {(c["curve"], c["baseline"], c["at"]): c["value"] for c in answer["comparisons"] if c["value"]}
    assert values["mild", "timm_a3", 78.1]["value"] == pytest.approx(2.5)


def test_published_points_have_the_price_of_their_machine() -> None:
    curves = {(curve.name, curve.setting.hardware): curve for curve in published_curves()}
    assert curves["mild", "p4d.24xlarge"].points[0].cost("money") == pytest.approx(21.957642 * 56 / 60)
    assert curves["mild", "8x A100 80GB"].points[0].cost("money") is None
    assert all(curve.source for curve in curves.values())
