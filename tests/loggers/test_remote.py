"""A tracking server must never end a run, delay it, or repeat a warning."""

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from launcher import installation
from launcher.config.compose import compose
from launcher.installation import how_to_add
from launcher.loggers.remote import RemoteSink, closing_scalars
from launcher.loggers.wandb import WandbTracker
from launcher.records.metrics import ResumeRecord, StartRecord
from launcher.records.run_folder import create
from launcher.records.sinks import scalars
from launcher.tasks.classification import Classification
from tests.commands import refused
from tests.made_runs import end, evaluation
from tests.tracking_server import Server


def test_records_arrive_in_order_with_the_outcome_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    for records, outcome in (([end(30)], "finished"), ([end(30, finished=False)], "stopped"), ([], "failed")):
        server = Server()
        sink = RemoteSink("there", server)
        for step in (10, 20):
            sink.write(evaluation(step))
        for record in records:
            sink.write(record)
        sink.close()
        assert (server.steps, server.opened) == ([10, 20, *(record.step for record in records)], 1)
        assert server.outcome == outcome
    assert capsys.readouterr().out == ""


def test_an_unreachable_server_costs_one_warning_and_gets_all_records_later(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    server.unreachable = True
    sink = RemoteSink("there", server)
    for step in (10, 20):
        server.refused.clear()
        sink.write(evaluation(step))
        assert server.refused.wait(60)
    server.unreachable = False
    sink.write(end(30))
    sink.close()
    assert server.steps == [10, 20, 30]
    assert capsys.readouterr().out == "warning: there: no route\\nto host; training continues\n"


def test_a_server_that_never_responds_does_not_delay_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    server.responds.clear()
    sink = RemoteSink("there", server, close_seconds=0.05)
    for step in range(1000):
        sink.write(evaluation(step))
    sink.close()
    assert server.steps == []
    assert capsys.readouterr().out.count("warning") == 1
    server.responds.set()


def test_scalars_have_the_names_of_the_records() -> None:
    record = evaluation(10)
    values = scalars(record)
    assert values == {"eval/epoch": 1.0, "eval/top1": 0.5, "eval/top5": 0.9, "eval/samples": 50, "eval/seconds": 2.0,
                     "eval/train_seconds": 1.0}  # fmt: skip
    row = record.row()
    assert {name.removeprefix("eval/") for name in values} < {**row, **row["metrics"]}.keys()
    assert scalars(StartRecord(0, 1e9, 2, 100, 10, "cpu", "float32", "top1", "higher")) == {
        "start/world_size": 2, "start/total_steps": 100, "start/epochs": 10}  # fmt: skip
    assert scalars(end(5)) == {"end/train_seconds": 30.0, "end/eval_seconds": 4.0, "end/save_seconds": 1.0}
    assert scalars(ResumeRecord(5, 1e9, 4)) == {"resume/world_size": 4}


def test_closing_scalars_have_the_last_and_best_metric() -> None:
    rows = [record.row() for record in (evaluation(10, 0.7), evaluation(20, 0.6), end(20))]
    assert closing_scalars(rows, Classification.metrics[0]) == {
        "end/top1": 0.6, "end/best_top1": 0.7,
        "end/train_seconds": 30.0, "end/eval_seconds": 4.0, "end/save_seconds": 1.0,
    }  # fmt: skip
    assert closing_scalars([], Classification.metrics[0]) == {}


@pytest.mark.parametrize(
    ("loggers", "logger", "package"),
    [
        ("wandb", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow-skinny"),
        ("prometheus", "prometheus", "prometheus-client"),
        ("[tensorboard,prometheus]", "prometheus", "prometheus-client"),
    ],
)
def test_a_missing_package_is_an_error_before_a_file_is_written(
    loggers: str, logger: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installation, "_is_installed", lambda module: False)
    needed = f"logger={logger}: needs the package {package}; run {how_to_add(package)}"
    assert refused(f"logger={loggers}", "launch=cpu") == f"error: {needed}\n"
    assert not list(tmp_path.iterdir())


def test_a_folder_with_the_name_of_a_package_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not installation._is_installed("only_a_folder")
    assert installation._is_installed("json")


def test_mlflow_without_a_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_is_installed", lambda module: True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "no server; set logger.uri=http://HOST:5000" in refused("logger=mlflow", "launch=cpu")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    compose(["logger=mlflow"]).config.logger.check()


def test_each_value_of_wandb_reaches_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = MagicMock(Error=OSError)
    monkeypatch.setitem(sys.modules, "wandb", library)
    words = ["logger=wandb", "logger.project=mine", "logger.entity=team", "logger.mode=offline"]
    config = compose(words).config
    WandbTracker(create(tmp_path, "run"), config, config.logger).open()
    given = library.init.call_args.kwargs
    assert (given["project"], given["entity"], given["mode"]) == ("mine", "team", "offline")
