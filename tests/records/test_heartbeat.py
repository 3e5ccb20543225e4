"""`heartbeat=FILE`: the state of a run in JSON or Prometheus' text format, from the records that rank 0 has anyway."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.records import heartbeat
from launcher.records.heartbeat import HeartbeatSink, prometheus
from launcher.records.metrics import EndRecord, NonFiniteRecord, StartRecord, TrainRecord, WarningRecord, read_metrics
from launcher.records.run_folder import RunFolder
from tests.runs import SMALL, Train

START = StartRecord(0, 1.0, 1, 40, 4, "cpu", "float32", "top1", "higher")
TRAINED = TrainRecord(10, 2.0, 1.0, 0.5, 0.1, 32, 100.0, 0.1, 0.0, None, 20.0)
# The grammar of Prometheus' text format for a gauge with labels.
SAMPLE = re.compile(r'[a-z_]+\{[a-z]+="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-z]+="(?:[^"\\\n]|\\[\\"n])*")*\} (\S+)')


@pytest.fixture
def sink(tmp_path: Path) -> HeartbeatSink:
    return HeartbeatSink(tmp_path / "beat.json", RunFolder(tmp_path / "run"), 40, 4)


def values(sink: HeartbeatSink) -> dict[str, object]:
    return json.loads(sink._path.read_text())


def test_a_run_writes_its_state_and_a_file_that_cannot_be_written_ends_no_run(train: Train) -> None:
    file, table = train.folder / "beat.json", train.folder / "a.prom"
    run = train.small("a", f"heartbeat={file}")
    state, rows = json.loads(file.read_text()), read_metrics(run / "metrics.jsonl")
    last, evaluated = ([row for row in rows if row["kind"] == kind][-1] for kind in ("train", "eval"))
    assert state["state"] == "finished"
    assert (state["step"], state["total_steps"], state["epochs"]) == (18, 18, 3)
    assert (state["loss"], state["samples_per_second"]) == (last["loss"], last["samples_per_second"])
    assert (state["metrics"], state["evaluated_step"]) == (evaluated["metrics"], evaluated["step"])
    assert (state["seconds_left"], state["health"]) == (0.0, "ok")
    assert state["run"] == str(run)
    assert Path(state["checkpoint"]).is_file()
    assert [path.name for path in train.folder.iterdir() if path.name.startswith(".beat")] == []
    output = train("resume", str(run), "epochs=4", f"heartbeat={table}").stdout
    assert "warning" not in output
    samples = dict(line.rsplit(" ", 1) for line in table.read_text().splitlines() if not line.startswith("#"))
    assert samples[f'train_step{{run="{run}"}}'] == "24.0"
    assert samples[f'train_running{{run="{run}"}}'] == "0.0"
    done = train(*SMALL, "run_name=b", "epochs=2", f"heartbeat={train.folder}/missing/beat.json")
    assert "missing/beat.json cannot be written" in done.stdout + done.stderr
    assert read_metrics(train.folder / "runs" / "b" / "metrics.jsonl")[-1]["finished"]


def test_time_left_health_and_the_interval_of_the_file(sink: HeartbeatSink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.write(START)
    assert values(sink)["state"] == "training"
    clock = [heartbeat.time.monotonic()]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clock[0])
    sink.write(TRAINED)
    assert values(sink)["step"] == 0
    clock[0] += 1.5
    sink.write(replace(TRAINED, step=20))
    assert (values(sink)["step"], values(sink)["seconds_left"], values(sink)["health"]) == (20, 20.0, "ok")
    sink.write(NonFiniteRecord(21, 3.0, None, "skip", [[0]]))
    assert values(sink)["health"] == "loss or gradients of step 21 are not finite"
    clock[0] += 1.5
    sink.write(replace(TRAINED, step=30, loss=float("nan")))
    assert (values(sink)["health"], values(sink)["nonfinite_steps"]) == ("the loss is not finite", 1)
    sink.write(WarningRecord(30, 3.5, "slow data", "training waits for its data"))
    assert (values(sink)["warnings"], values(sink)["warning"]) == (1, "training waits for its data")
    assert "train_warnings" in prometheus(values(sink))
    sink.write(EndRecord(30, 4.0, False, 1.0, 0.0, 0.0))
    assert values(sink)["state"] == "stopped"


def test_a_failing_write_warns_once(sink: HeartbeatSink, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink._path = tmp_path / "no" / "beat.json"
    sink.write(START)
    sink.write(START)
    assert capsys.readouterr().out.count("cannot be written") == 1
    sink._path.parent.mkdir()
    sink.write(START)
    assert values(sink)["step"] == 0


def test_the_text_for_prometheus_follows_its_grammar(sink: HeartbeatSink) -> None:
    sink._values["run"] = 'runs/"a"\\b\nc'
    sink.write(START)
    sink.write(TRAINED)
    lines = prometheus({**sink._values, "metrics": {"top1": 0.5, "none": None}}).splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert [float(SAMPLE.fullmatch(line)[1]) for line in samples if line.startswith("train_metric")] == [0.5]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    names = [line.partition("{")[0] for line in samples]
    assert len(names) == len({*names})
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == names
    assert {"train_healthy", "train_running", "train_step", "train_seconds_left"} <= {*names}
