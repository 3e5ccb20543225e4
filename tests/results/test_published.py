"""The published points, as the command prints them."""

import json
from dataclasses import replace

import pytest

from launcher.records.scales import scale_named
from launcher.results.curves import StudySetting
from launcher.results.published import published, published_curves
from launcher_lab.study.report import beside
from launcher_lab.study.results import Results
from tests.commands import output_of
from tests.curves import curve


def test_the_curves_give_the_speed_ups_by_interpolation() -> None:
    output = json.loads(output_of("compare", "--published", "--json"))
    values = {(c["curve"], c["setting"]["hardware"], c["at"]): c["value"] for c in output["comparisons"] if c["value"]}
    assert values["mild", "8x A100 80GB", 76.6]["value"] == pytest.approx(180 / 25.3)
    assert values["mild", "p4d.24xlarge", 76.6]["value"] == pytest.approx(213 / 27)
    output = json.loads(output_of("compare", "--published", "--json", "--baseline", "timm_a3"))
    values = {(c["curve"], c["baseline"], c["at"]): c["value"] for c in output["comparisons"] if c["value"]}
    assert values["mild", "timm_a3", 78.1]["value"] == pytest.approx(2.5)


def test_published_points_have_the_price_of_their_machine() -> None:
    curves = {(curve.name, curve.setting.hardware): curve for curve in published_curves()}
    assert curves["mild", "p4d.24xlarge"].points[1].cost("money") == pytest.approx(21.957642 * 56 / 60)
    assert curves["mild", "BM.GPU4.8"].points[0].cost("money") == pytest.approx(24.4 * 54.3 / 60)
    assert curves["mild", "8x A100 80GB"].points[0].cost("money") is None
    assert all(curve.source for curve in curves.values())


def test_derived_points_follow_their_formulas_and_have_a_note() -> None:
    curves = {(curve.name, curve.setting.model, curve.setting.hardware): curve for curve in published_curves()}
    derived = {
        ("mild", "resnet50", "BM.GPU4.8"): 56 * 21582 / 22242,
        ("hot", "resnet50", "BM.GPU4.8"): 180 * 1_280_000 / 14388 / 60,
        ("hot", "resnet50", "p4d.24xlarge"): 180 * 1_280_000 / 9225 / 60,
        ("Composer, early 2022", "resnet101", "p4d.24xlarge"): 49 / 32.7726 * 60,
    }
    for key, minutes in derived.items():
        (point,) = curves[key].points
        assert point.cost("time") == pytest.approx(minutes, abs=0.05)
        assert point.note


def test_each_of_the_six_machines_has_points_or_a_reason() -> None:
    machines = published()["machines"]
    measured = {curve.setting.hardware for curve in published_curves()}
    assert len(machines) == 6
    for machine in machines:
        assert ("why" in machine) != (machine["name"] in measured)


def test_published_perplexities_are_points_beside_those_of_runs() -> None:
    perplexity = scale_named("perplexity")
    curves = {curve.name: curve for curve in published_curves([perplexity])}
    for name, minutes in {"gpt2_125m": 468, "gpt2_125m_mosaic": 270}.items():
        (point,) = curves.pop(name).points
        assert (perplexity.text(point.quality), point.epochs, point.cost("time")) == ("24.11", 1, minutes)
        assert point.cost("money") == pytest.approx(21.957642 * minutes / 60)
    assert not curves
    setting = StudySetting("openwebtext, perplexity", "gpt", "1x cpu")
    own = replace(curve("own", (1.0, -30.0), setting=setting), metric=perplexity)
    shown = beside(Results([], [own], published_curves([perplexity])))
    assert [one.name for one in shown] == ["own", "gpt2_125m", "gpt2_125m_mosaic"]


def test_published_points_have_the_model_of_their_recipe() -> None:
    models = {curve.name: curve.setting.model for curve in published_curves()}
    assert (models["ffcv_rn18"], models["ffcv_rn50"], models["mild"]) == ("resnet18", "resnet50", "resnet50")


@pytest.mark.parametrize(
    ("setting", "across", "names"),
    [
        (StudySetting("shapes", "resnet18", "1x cpu"), (), {"own"}),
        (StudySetting("imagenet", "resnet18", "1x cpu"), (), {"own", "ffcv_rn18"}),
        (StudySetting("shapes", "resnet18", "1x cpu"), ("datasets",), {"own", "ffcv_rn18"}),
    ],
)
def test_an_image_has_only_published_points_on_the_data_set_and_model_of_the_runs(
    setting: StudySetting, across: tuple[str, ...], names: set[str]
) -> None:
    own = curve("own", (1.0, 70.0), setting=setting)
    assert {one.name for one in beside(Results([], [own], published_curves(), across))} == names
    assert len(beside(Results([], [], published_curves()))) == len(published_curves())
