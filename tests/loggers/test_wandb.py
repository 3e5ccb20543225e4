"""Weights & Biases offline: the files of its library, read with its message types."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.records.metrics import ResumeRecord
from launcher.records.run_folder import RunFolder, create, existing
from tests.made_runs import end, evaluation, log

wandb = pytest.importorskip("wandb", reason="wandb is not installed")

_BLOCK, _HEAD = 32768, 7


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunConfig]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield compose(["logger=wandb", "logger.project=mine", "recipe=mild", "seed=7"]).config
    wandb.teardown()  # note: the library reads its environment variables once per process


def messages(path: Path) -> Iterator[Any]:
    """Yield the messages of a transaction log: LevelDB's log format after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), _HEAD, b""
    assert data.startswith(b":W&B")
    while at + _HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD:
            at += _BLOCK - at % _BLOCK
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        if kind in (1, 4):
            yield Record.FromString(part)
            part = b""


def logged(folder: RunFolder) -> list[list[Any]]:
    """Return the messages of each part of the run, in the order of the folders."""
    return [list(messages(path)) for path in sorted(folder.path.glob("wandb/offline-run-*/*.wandb"))]


def points(part: list[Any], name: str) -> list[tuple[int, float]]:
    rows = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in message.history.item}
        for message in part
        if message.WhichOneof("record_type") == "history"
    ]
    return [(row["step"], row[name]) for row in rows if name in row]


def test_the_files_have_all_values_and_a_resume_continues_the_run(tmp_path: Path, config: RunConfig) -> None:
    folder = create(tmp_path, "run", unique=False)
    for records in ([evaluation(10, 0.25), evaluation(20, 0.5), end(20, finished=False)],
                    [ResumeRecord(10, 1e9, 1), evaluation(20, 0.75), end(20)]):  # fmt: skip
        log(folder, config, *records)
        time.sleep(1)  # note: the library names its folders by the second
    first, second = logged(folder)
    (started, *_), (again, *_) = (
        [m.run for m in part if m.WhichOneof("record_type") == "run"] for part in (first, second)
    )
    assert (started.project, started.display_name, again.run_id) == ("mine", "run", started.run_id)
    assert set(started.tags) == {"recipe mild", "model resnet50", "dataset imagenet", "seed 7"}
    values = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert (values["seed"], values["algorithms"]["label_smoothing"]) == (7, {"smoothing": 0.08})
    assert points(first, "eval/top1") == [(10, 0.25), (20, 0.5)]
    assert points(second, "eval/top1") == [(20, 0.75)]
    summary = {
        item.key or ".".join(item.nested_key): json.loads(item.value_json)
        for message in second
        if message.WhichOneof("record_type") == "summary"
        for item in message.summary.update
    }
    assert (summary["end/top1"], summary["end/best_top1"]) == (0.75, 0.75)
    exits = [message.exit.exit_code for part in (first, second) for message in part if message.HasField("exit")]
    assert exits == [1, 0]
    folder.config.touch()
    existing(str(folder.path))  # note: refuses a folder with links


def test_without_a_server_the_records_are_written_for_a_later_upload(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("MODE", "online"), ("API_KEY", "k" * 40), ("BASE_URL", "http://127.0.0.1:1")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setattr("launcher.loggers.wandb._SECONDS_TO_OPEN", 1)
    folder = create(tmp_path, "run", unique=False)
    log(folder, config, evaluation(10, 0.25), end(10))
    (part,) = logged(folder)
    assert points(part, "eval/top1") == [(10, 0.25)]
    assert capsys.readouterr().out.count("with `wandb sync`") == 1
