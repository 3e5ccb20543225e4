"""An estimate is found by the run of its config, and only by that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.records.folder import RunFolder
from launcher.records.metrics import EndRecord, MetricsWriter
from launcher.records.prediction import adopt_estimate, deviations, keep_estimate

ESTIMATE = {clock: {"seconds": 10.0} for clock in ("training", "evaluation", "saving")}


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return compose([f"runs='{tmp_path}'", "dataset=shapes"]).config


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def end(folder: RunFolder, *, finished: bool) -> None:
    writer = MetricsWriter(folder.metrics)
    writer.write(EndRecord(100, 0.0, finished, 8.0, 10.0, 0.0))
    writer.close()


def test_a_finished_run_shows_how_far_off_its_estimate_was(config: RunConfig, folder: RunFolder) -> None:
    keep_estimate(config, ESTIMATE)
    adopt_estimate(replace(config, run_name="chosen"), folder)
    assert deviations(folder) == []
    end(folder, finished=True)
    found = {d.clock: d.error for d in deviations(folder)}
    assert found == {"training": pytest.approx(0.25), "evaluation": 0.0, "saving": 0.0}


def test_another_config_does_not_find_it(config: RunConfig, folder: RunFolder) -> None:
    keep_estimate(config, ESTIMATE)
    adopt_estimate(replace(config, epochs=config.epochs + 1), folder)
    end(folder, finished=True)
    assert list(folder.path.iterdir()) == [folder.metrics]
    assert deviations(folder) == []


def test_a_stopped_run_and_a_damaged_estimate_show_nothing(config: RunConfig, folder: RunFolder) -> None:
    keep_estimate(config, ESTIMATE)
    adopt_estimate(config, folder)
    end(folder, finished=False)
    assert deviations(folder) == []
    end(folder, finished=True)
    for text in ("{", "[]", json.dumps({"training": None})):
        (folder.path / "estimate.json").write_text(text)
        assert deviations(folder) == []
