"""The grid composes, finds its runs, and computes effects by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from launcher.config.compose import compose
from launcher.config.resolved import as_mapping
from launcher.records.folder import create
from launcher.records.metrics import EndRecord, EpochRecord, EvalRecord, MetricsWriter, StartRecord
from launcher.study.ablation import Measured, effects, grid, limits, measured_of
from launcher.study.runs import read_run


def test_the_grid_composes_and_keeps_the_recipes_values() -> None:
    hot = compose(["recipe=hot"]).config
    variants = {variant.name: variant for variant in grid(list(hot.algorithms.active()))}
    assert len(variants) == 2 + 2 * len(hot.algorithms.active())
    for variant in variants.values():
        active = compose(["recipe=hot", *variant.words]).config.algorithms.active()
        kind, _, name = variant.name.partition(" ")
        everything = hot.algorithms.active()
        expected = {
            "all": everything,
            "none": {},
            "without": {key: value for key, value in everything.items() if key != name},
            "only": {name: everything.get(name)},
        }
        assert active == expected[kind]


def test_effects_by_hand() -> None:
    found = {
        "all": Measured(2, 80.0, 100.0),
        "none": Measured(2, 76.0, 50.0),
        "without sam": Measured(1, 79.0, 80.0),
        "only sam": Measured(1, 76.5, 60.0),
        "without ema": None,
    }
    listed = effects(grid(["sam", "ema"]), found)
    assert [(e.algorithm, e.kind, e.top1, pytest.approx(e.time)) for e in listed] == [
        ("sam", "without", 1.0, 0.25),
        ("sam", "only", 0.5, pytest.approx(0.2)),
    ]


def test_amdahls_limits_by_hand() -> None:
    assert limits({"forward": 1.0, "backward": 2.0, "sam": 1.0}) == [
        ("backward", 0.5, 2.0),
        ("forward", 0.25, pytest.approx(4 / 3)),
        ("sam", 0.25, pytest.approx(4 / 3)),
    ]


def test_runs_are_found_whatever_their_seed_and_only_those_of_the_variant(tmp_path: Path) -> None:
    words = ["dataset=shapes", f"runs='{tmp_path}'", "recipe=mild", "schedule.warmup=0ba", "epochs=2"]
    for number, extra in enumerate((["seed=1"], ["seed=2"], ["algorithms.ema=off"])):
        folder = create(tmp_path, f"run-{number}", unique=False)
        folder.config.write_text(yaml.safe_dump(as_mapping(compose([*words, *extra]).config)))
        writer = MetricsWriter(folder.metrics)
        writer.write(StartRecord(0, 0.0, 1, 20, 2, "cpu", "float32"))
        for epoch in (1, 2):
            writer.write(EpochRecord(10 * epoch, 1.0, epoch, 1.0, 60.0, 1.0, 0.0, 60.0 * epoch))
            writer.write(EvalRecord(10 * epoch, 1.0, epoch, 0.4 + 0.1 * number, 1.0, 1.0, 10, 1.0, 60.0 * epoch))
        writer.write(EndRecord(20, 2.0, True, 120.0, 2.0, 0.0))
        writer.close()
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    whole, without = (measured_of(compose([*words, *extra]).config, runs) for extra in ([], ["algorithms.ema=off"]))
    assert whole is not None
    assert without is not None
    assert (whole.runs, whole.top1, whole.minutes) == (2, pytest.approx(45.0), pytest.approx(2.0))
    assert (without.runs, without.top1) == (1, pytest.approx(60.0))
    assert measured_of(compose([*words, "algorithms.blurpool=off"]).config, runs) is None
