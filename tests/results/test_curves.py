"""Which runs make one curve, and the name of a curve."""

import statistics
from typing import Any

import pytest

from launcher.records.run import read_run
from launcher.results.curves import build_curves, deviation
from tests.made_runs import CONFIG, MakeRun


def changed(group: str, **values: Any) -> dict[str, Any]:
    return {group: {**CONFIG[group], **values}}


def test_a_curve_has_a_point_per_length_and_a_value_per_seed(make_run: MakeRun) -> None:
    paths = [
        make_run(f"{n}-{seed}", (0.5, *[0.6 + seed / 100] * (n - 1)), (60.0,) * n, seed=seed)
        for n in (2, 4)
        for seed in (0, 1)
    ]
    (curve,) = build_curves(map(read_run, paths))
    assert (curve.name, curve.setting.dataset, curve.setting.hardware) == ("mild", "shapes", "1x cpu")
    assert [point.epochs for point in curve.points] == [2, 4]
    assert curve.points[0].top1 == pytest.approx((60.0, 61.0))
    assert curve.points[1].costs["time"] == (4.0, 4.0)
    assert "money" not in curve.points[0].costs
    assert deviation(curve.points[0].top1) == pytest.approx(statistics.stdev((60.0, 61.0)))
    assert deviation((1.0,)) is None


def test_other_values_make_another_curve_named_by_its_changes(make_run: MakeRun) -> None:
    runs = [
        make_run("a"), make_run("b", seed=1),
        make_run("c", algorithms={}),
        make_run("d", algorithms={"ema": {"half_life": "50ba"}}),
        make_run("e", algorithms={**CONFIG["algorithms"], "mixup": {"alpha": 0.2}}),
        make_run("f", recipe=None),
        make_run("g", launch={"nproc": 1}, logger={"interval": "1ep"}, run_name="g"),
        make_run("h", model={**CONFIG["model"], "weights": "timm", "weights_sha256": "ab"}),
        make_run("i", model={**CONFIG["model"], "weights": "timm", "weights_sha256": "cd"}),
    ]  # fmt: skip
    curves = build_curves(map(read_run, runs))
    assert [curve.name for curve in curves] == [
        "mild",
        "mild +mixup",
        "mild -ema",
        "mild ema.half_life=50ba",
        "mild model.weights=timm",
        "mild model.weights=timm #2",
        "no recipe",
    ]
    assert len(curves[0].points[0].top1) == 2


def test_a_name_lists_algorithms_in_one_order(make_run: MakeRun) -> None:
    more = {"mixup": {"alpha": 0.2}, "label_smoothing": {"smoothing": 0.1}, "cutmix": {"alpha": 0.2}}
    runs = [make_run("a"), make_run("b", seed=1), make_run("c", algorithms={**more, **CONFIG["algorithms"]})]
    assert [curve.name for curve in build_curves(map(read_run, runs))] == [
        "mild",
        "mild +cutmix +label_smoothing +mixup",
    ]


def test_dilated_lengths_are_a_separate_curve(make_run: MakeRun) -> None:
    runs = [
        make_run("half", (0.5, 0.6), (60.0, 60.0), epochs=4, **changed("schedule", dilate=0.5)),
        make_run("whole", (0.5,) * 4, (60.0,) * 4, epochs=4),
        make_run("short", (0.5, 0.55), (60.0, 60.0), epochs=2),
    ]
    curves = {curve.name: [p.epochs for p in curve.points] for curve in build_curves(map(read_run, runs))}
    assert sorted(curves.values()) == [[2], [2, 4]]
    (dilated,) = (name for name, epochs in curves.items() if epochs == [2, 4])
    assert "dilated from ep" in dilated or "dilated from ep" in " ".join(curves)


def test_values_that_a_recipe_sets_by_length_do_not_split_a_curve(make_run: MakeRun) -> None:
    """ffcv_rn50 lists a ramp for each of its lengths."""
    ramps = {16: 0.1, 88: 0.2}
    runs = [
        make_run(
            str(epochs),
            recipe="ffcv_rn50",
            algorithms={"progressive_resizing": {"initial_scale": 0.8, "delay": delay, "finetune": delay}},
        )
        for epochs, delay in ramps.items()
    ]
    assert len(build_curves(map(read_run, runs))) == 1
