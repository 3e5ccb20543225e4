"""Runs on different data sets are never compared; runs on one data set are, wherever it is stored."""

from pathlib import Path
from typing import Any

import pytest

from launcher.errors import UserError
from launcher.records.run import read_run
from launcher.records.run_folder import RunFolder, note_dataset
from launcher.results.curves import build_curves
from launcher_lab.study.algoperf import score_runs
from launcher_lab.study.results import choose_baselines, comparisons, on_front, read_results
from launcher_lab.study.tables import not_counted
from tests.commands import output_of
from tests.made_runs import MakeRun

COUNTS = {"classes": 2, "train_samples": 20, "val_samples": 10}


def images(path: str | None, name: str = "image_folder", **values: Any) -> dict[str, Any]:
    return {"name": name, "kind": "folder", "path": path, **COUNTS, **values}


def on(path: Path, *identities: str) -> Path:
    """Add the identities of data sets to a run folder."""
    for identity in identities:
        note_dataset(RunFolder(path), identity)
    return path


def test_data_sets_with_equal_counts_are_different(make_run: MakeRun) -> None:
    flowers = on(make_run("a", seed=0, dataset=images("/data/flowers")), "f" * 64)
    cars = on(make_run("b", seed=1, dataset=images("/data/cars")), "c" * 64)
    curves = build_curves([read_run(flowers), read_run(cars)])
    assert [len(curve.points[0].top1) for curve in curves] == [1, 1]
    assert {curve.name for curve in curves} == {"mild"}
    assert [c.setting.dataset for c in curves] == ["image_folder (/data/cars)", "image_folder (/data/flowers)"]


def test_a_data_set_is_the_same_at_any_path_with_any_loader(make_run: MakeRun) -> None:
    loaders = [{"name": "torchvision"}, {"name": "torchvision"}, {"name": "ffcv", "folder": "/fast"}]
    runs = [
        read_run(on(make_run(str(seed), seed=seed, dataset=images(path), dataloader=loader), "f" * 64))
        for seed, (path, loader) in enumerate(zip(("/data/flowers", "/mnt/flowers", None), loaders, strict=True))
    ]
    curves = build_curves(runs)
    assert {curve.setting.dataset for curve in curves} == {"image_folder"}
    assert sorted(len(curve.points[0].top1) for curve in curves) == [1, 2]


def test_changed_images_at_one_path_are_two_data_sets(make_run: MakeRun) -> None:
    runs = [
        read_run(on(make_run(str(seed), seed=seed, dataset=images("/data/flowers")), name * 64))
        for seed, name in enumerate("ab")
    ]
    names = sorted(curve.setting.dataset for curve in build_curves(runs))
    assert names == ["image_folder (/data/flowers, aaaaaaaa)", "image_folder (/data/flowers, bbbbbbbb)"]


def test_a_subset_of_imagenet_is_not_compared_with_published_points(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("g/part", dataset=images("/data/part", "imagenet"))
    make_run("g/whole", dataset={"name": "imagenet", "classes": 1000})
    names = {curve.setting.dataset for curve in read_results([str(tmp_path / "g")], published=True).all_curves}
    assert names == {"imagenet (/data/part)", "imagenet"}


def test_a_run_resumed_on_other_images_is_excluded(make_run: MakeRun, tmp_path: Path) -> None:
    on(make_run("g/a"), "f" * 64, "c" * 64)
    results = read_results([str(tmp_path / "g")], published=False)
    assert results.curves == []
    ((_, state, why),) = not_counted(results)
    assert (state, why) == ("finished", "a resume used another data set")


@pytest.mark.parametrize("text", ["", "[", "[1]", "{}", '{"identities": 3}', "null", "\xff"])
def test_a_damaged_dataset_file_counts_as_missing(make_run: MakeRun, text: str) -> None:
    folder = make_run("a", dataset=images("/data/flowers"))
    (folder / "dataset.json").write_text(text, encoding="latin-1")
    run = read_run(folder)
    assert (run.identities, run.state) == ((), "finished")


def test_comparisons_fronts_and_scores_stay_within_one_data_set(make_run: MakeRun, tmp_path: Path) -> None:
    for recipe, seconds in (("baseline", 60.0), ("mild", 30.0)):
        for data, name in (("f", "/data/flowers"), ("c", "/data/cars")):
            path = make_run(f"g/{recipe}-{data}", (0.5, 0.6), (seconds,) * 2, recipe=recipe, dataset=images(name))
            on(path, data * 64)
    results = read_results([str(tmp_path / "g")], published=False)
    front = {(setting.dataset, name) for setting, name, _ in on_front(results.curves, "time")}
    assert front == {("image_folder (/data/cars)", "mild"), ("image_folder (/data/flowers)", "mild")}
    baselines = choose_baselines(results.curves, None, "time")
    compared = comparisons(results.curves, baselines, "time", qualities=[60.0], costs=())
    assert [(one.setting.dataset, one.value and one.value.value) for one in compared] == [
        ("image_folder (/data/cars)", pytest.approx(2.0)),
        ("image_folder (/data/flowers)", pytest.approx(2.0)),
    ]
    assert len(score_runs(results.runs, 0.6, "self").seconds["mild"]) == 2


def test_a_table_of_several_settings_shows_them(make_run: MakeRun, tmp_path: Path) -> None:
    for recipe in ("baseline", "mild"):
        for data in ("flowers", "cars"):
            on(make_run(f"g/{recipe}-{data}", recipe=recipe, dataset=images(f"/data/{data}")), data * 8)
    comparisons = output_of("compare", str(tmp_path / "g")).split("comparison with the baseline")[1]
    assert "image_folder (/data/cars), resnet18, 1x cpu" in comparisons
    assert "image_folder (/data/flowers), resnet18, 1x cpu" in comparisons


def test_a_baseline_is_selected_with_its_data_set(make_run: MakeRun) -> None:
    makes = [("mild", "flowers"), ("hot", "flowers"), ("mild", "cars"), ("hot", "cars")]
    runs = [make_run(f"{r}-{d}", recipe=r, dataset=images(f"/data/{d}", d)) for r, d in makes]
    curves = build_curves(map(read_run, runs))
    assert {(s.dataset, c.name) for s, c in choose_baselines(curves, "mild", "time").items()} == {
        ("flowers", "mild"), ("cars", "mild"),
    }  # fmt: skip
    ((setting, curve),) = choose_baselines(curves, "hot on cars", "time").items()
    assert (setting.dataset, curve.name) == ("cars", "hot")
    with pytest.raises(UserError, match="no such curve; one of: "):
        choose_baselines(curves, "hot on birds", "time")
