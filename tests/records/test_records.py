"""Records of a run: files that a kill or a full disk may cut, and TensorBoard's numbers."""

import errno
import json
import os
import sys
import time
from itertools import count
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.loggers.tensorboard import TensorBoardSink
from launcher.records import sinks
from launcher.records.metrics import ResumeRecord, StartRecord, read_metrics
from launcher.records.run_folder import RunFolder
from launcher.records.sinks import MetricsWriter, Recorder
from tests.made_runs import end, evaluation, log, training, written

from .conftest import summary


def test_records_of_repeated_steps_are_void(folder: RunFolder) -> None:
    stopped = end(5, finished=False)
    written(folder, training(4), training(5), training(6), stopped, ResumeRecord(5, 1e9, 1), training(6, 2.0))
    rows = read_metrics(folder.metrics)
    assert [(row["kind"], row["step"]) for row in rows] == [("train", 4), ("train", 5), ("resume", 5), ("train", 6)]
    assert rows[-1]["loss"] == 2.0


def test_a_truncated_line_loses_only_itself(folder: RunFolder) -> None:
    written(folder, training(1))
    with folder.metrics.open("ab") as file:
        file.write(b'{"kind": "train", "step": 2, "lo')
    written(folder, training(3))
    assert [row["step"] for row in read_metrics(folder.metrics)] == [1, 3]


class SmallDisk:
    """Replacement of `os` with a disk that is full after `room` bytes."""

    def __init__(self, room: int):
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, file: int, data: bytearray) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(file, bytes(data[: self.room]))
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    disk = SmallDisk(300)
    monkeypatch.setattr(sinks, "os", disk)
    return disk


def test_records_are_buffered_while_the_disk_is_full_and_written_later(
    folder: RunFolder, disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder([MetricsWriter(folder.metrics)])
    for step in range(1, 8):
        recorder.record(training(step))
    assert not folder.metrics.read_bytes().endswith(b"\n"), "a part of a line was written"
    assert capsys.readouterr().out.count("warning: records cannot be written (No space left on device)") == 1
    disk.room = 10**6
    recorder.record(training(8))
    recorder.close()
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == list(range(1, 9))
    assert "records lost" not in summary(written(folder, end(8)))


def test_the_buffer_is_limited_and_the_summary_reports_lost_records(
    folder: RunFolder, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sinks, "_MOST_BUFFERED", 1000)
    recorder = Recorder([MetricsWriter(folder.metrics)])
    for step in range(1, 21):
        recorder.record(training(step))
    disk.room = 10**6
    recorder.record(training(21))
    rows = read_metrics(folder.metrics)
    lost = 21 - sum(row["kind"] == "train" for row in rows)
    assert (rows[-1]["kind"], rows[-1]["records"]) == ("lost", lost)
    disk.room = 0
    recorder.record(end(21))
    recorder.close()
    assert "warning: the last records are lost (No space left on device)" in capsys.readouterr().out
    assert f"{lost} in the middle and the last ones: the disk was full" in summary(folder)


def test_numbers_that_json_lacks_become_null(folder: RunFolder) -> None:
    written(folder, training(1, float("nan")))
    assert json.loads(folder.metrics.read_text())["loss"] is None


def test_tensorboard_holds_the_same_numbers(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # note: TensorBoard reads files in the order of their names, which hold seconds; a resume takes longer
    seconds = count(1e9)
    monkeypatch.setattr(time, "time", lambda: next(seconds))
    records = training(1, 3.0), evaluation(1, 0.25), training(2, 9.0), ResumeRecord(1, 1e9, 1), training(2, 2.0)
    log(folder, compose(["logger=tensorboard"]).config, *records)
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 3.0), (2, 2.0)]
    assert [(e.step, e.value) for e in events.Scalars("eval/top1")] == [(1, 0.25)]
    assert len(read_metrics(folder.metrics)) == 4


def test_tensorboard_is_imported_only_for_the_first_numbers(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    sink = TensorBoardSink(folder.tensorboard)
    sink.write(StartRecord(0, 1e9, 1, 10, 1, "cpu", "float32", "top1", "higher"))
    with pytest.raises(ImportError):
        sink.write(training(1))
    sink.close()


def test_a_new_start_voids_all_earlier_records(folder: RunFolder) -> None:
    start = StartRecord(0, 1e9, 1, 10, 1, "cpu", "float32", "top1", "higher")
    written(folder, start, training(4), start, training(3))
    assert [(row["kind"], row["step"]) for row in read_metrics(folder.metrics)] == [("start", 0), ("train", 3)]
