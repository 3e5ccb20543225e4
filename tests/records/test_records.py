"""The run folder: its lock, its append-only records, and what is computed from them."""

import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.loggers.tensorboard import TensorBoardSink
from launcher.records import sinks
from launcher.records.learning_curve import draw_curve
from launcher.records.metrics import Record, ResumeRecord, StartRecord, TrainRecord, read_metrics
from launcher.records.progress import ProgressView, duration
from launcher.records.run_folder import RunFolder, create, existing
from launcher.records.sinks import MetricsWriter, Recorder
from launcher.records.summary import save_estimate, summary_table
from launcher.training.meters import Stopwatch
from tests.made_runs import append, end, evaluation, log

CONFIG = compose(["launch=cpu"]).config


def training(step: int, loss: float = 1.0) -> TrainRecord:
    return TrainRecord(step, 1e9, step / 10, loss, 0.1, 32, 100.0, 0.1, 0.01, None, step * 0.1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create(tmp_path, "run", unique=False)


def written(folder: RunFolder, *records: Record) -> RunFolder:
    append(folder.metrics, *records)
    return folder


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


def test_run_names_are_unique(tmp_path: Path) -> None:
    assert create(tmp_path, "a", unique=True).path.name == "a-1"
    assert create(tmp_path, "a", unique=True).path.name == "a-2"
    (create(tmp_path, "b", unique=False).path / "config.yaml").touch()
    with pytest.raises(UserError, match="set another run_name"):
        create(tmp_path, "b", unique=False)
    with pytest.raises(UserError, match="not a run folder"):
        existing(str(tmp_path))


def test_two_processes_cannot_lock_a_folder(folder: RunFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from launcher.records.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('held')"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with folder.locked():
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "in use by process" in refused.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "held\n"


WITHOUT_LOCKS = """
import errno, fcntl, os, sys, time
from pathlib import Path
from launcher import locks
from launcher.records.run_folder import RunFolder
def flock(*_): raise OSError(int(sys.argv[2]), "no locks")
fcntl.flock, locks._SECONDS = flock, float(sys.argv[3])
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(float(sys.argv[4]))
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_without_locks_is_leased_until_its_process_or_heartbeat_ends(folder: RunFolder, number: int) -> None:
    def start(heartbeat: float, seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WITHOUT_LOCKS, str(folder.path), str(number), str(heartbeat), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    holder = start(30, 100)
    assert holder.stdout.readline() == "held\n"  # type: ignore[union-attr]
    assert folder.is_locked()
    _, refused = start(30, 0).communicate()
    assert f"is in use by process {holder.pid} on {socket.gethostname()}" in refused
    holder.kill()
    assert holder.communicate()[1].startswith(f"note: the file system of {folder.path} has no locks; a lease")
    assert start(30, 0).communicate()[0] == "held\n"
    assert not folder.is_locked()
    # note: the lease of a process on another machine that has ended; only its heartbeat shows that
    holder = start(1, 100)
    assert holder.stdout.readline() == "held\n"  # type: ignore[union-attr]
    holder.kill()
    holder.communicate()
    lease = folder.path / ".lock.lease"
    lease.write_text(lease.read_text().replace(f"host={socket.gethostname()}", "host=elsewhere"))
    assert start(1, 0).communicate()[0] == "held\n"


def test_clocks_are_separate_and_continue_after_a_resume() -> None:
    now = [0.0]
    clock = Stopwatch(None, now=lambda: now[0])
    clock.switch("training")
    now[0] = 10
    with clock.counting("evaluation") as spent:
        now[0] = 13
        with clock.counting("saving"):
            now[0] = 14
        assert spent() == 3
    now[0] = 20
    assert clock.state_dict() == {"training": 16, "evaluation": 3, "saving": 1}
    resumed = Stopwatch(None, now=lambda: now[0])
    resumed.load_state_dict(clock.state_dict())
    now[0] = 25
    resumed.switch("training")
    now[0] = 27
    assert resumed.seconds("training") == 18


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_results_and_log_lines(folder: RunFolder, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=120)
    view = ProgressView(folder.metrics, CONFIG.task, total_steps=100, epochs=10, console=console)
    written(folder, training(10), evaluation(10, 0.25), training(20, float("nan")))
    view.poll()
    view.print("a line [of the log]")
    view.close()
    shown = screen.getvalue()
    assert "epoch 1/10  top-1 25.0%" in shown
    assert "a line [of the log]" in shown


@pytest.mark.parametrize(
    ("width", "gone"),
    [
        (60, ["epoch", "im/s", "loss", "data", "px", "lr"]),
        (80, ["im/s", "loss", "data", "px", "lr"]),
        (120, ["lr"]),
        (140, []),
    ],
)
def test_a_narrow_terminal_keeps_bar_step_and_time_left(folder: RunFolder, width: int, gone: list[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None)
    written(folder, training(12_340))
    view = ProgressView(folder.metrics, CONFIG.task, total_steps=168_750, epochs=270, console=console)
    written(folder, training(12_350))
    view.poll()
    view.close()
    line = max(re.sub(r"\x1b\[[0-9?]*[a-zA-Z]|\r", "\n", screen.getvalue()).splitlines(), key=len)
    assert len(line) <= width
    assert f"step 12,350/168,750 ━╸{22 * ' '} " in line
    assert line.rstrip().endswith(" left")
    for fact in ("epoch", "im/s", "loss", "data", "px", "lr"):
        assert (fact in line) == (fact not in gone), line


def test_the_bar_shows_starting_until_the_first_step(folder: RunFolder) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    view = ProgressView(folder.metrics, CONFIG.task, total_steps=100, epochs=10, console=console)
    written(folder, StartRecord(0, 1e9, 1, 100, 10, "cpu", "float32", "top1", "higher"))
    view.poll()
    view.close()
    first, last = screen.getvalue().index("starting"), screen.getvalue().rindex("step 0/100")
    assert first < last
    assert "starting" not in screen.getvalue()[last:]


def test_without_a_terminal_a_line_within_an_epoch_comes_every_half_minute(folder: RunFolder) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=False, width=200)
    view = ProgressView(folder.metrics, CONFIG.task, total_steps=100, epochs=10, console=console)
    seconds = {1: 5, 2: 29, 3: 31, 4: 45, 5: 62}
    rows = [replace(training(step), time=1e9 + time) for step, time in seconds.items()]
    written(folder, StartRecord(0, 1e9, 1, 100, 10, "cpu", "float32", "top1", "higher"), *rows)
    view.poll()
    lines = screen.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 3/100", "step 5/100"]
    assert all(line.endswith(" left") for line in lines)
    written(folder, replace(evaluation(6, 0.5), time=1e9 + 80), replace(training(7), time=1e9 + 100))
    view.poll()
    assert len(screen.getvalue().splitlines()) == 3


def summary(folder: RunFolder, config: RunConfig = CONFIG) -> str:
    screen = io.StringIO()
    Console(file=screen, width=120).print(summary_table(folder, config))
    return screen.getvalue()


def test_the_summary_is_computed_from_the_records(folder: RunFolder) -> None:
    shown = summary(written(folder, training(10), evaluation(10, 0.75), evaluation(20, 0.5), end(20)))
    assert "50.00% (best 75.00% at epoch 1)" in shown
    assert "30 s" in shown
    assert "10% of the time waiting" in shown
    assert "estimated" not in shown


def test_the_summary_shows_the_error_of_the_estimate_of_this_config(folder: RunFolder, tmp_path: Path) -> None:
    config = replace(CONFIG, runs=str(tmp_path))
    path = save_estimate(config, {clock: {"seconds": 33.0} for clock in ("training", "evaluation", "saving")})
    chosen = replace(config, run_name="chosen")
    assert "estimated" not in summary(written(folder, end(10, finished=False)), chosen)
    assert "training 33 s (+10.0%), evaluation 33 s (+725.0%)" in summary(written(folder, end(20)), chosen)
    assert "estimated" not in summary(folder, replace(config, epochs=config.epochs + 1))
    for text in ("{", "[]", '{"training": null}'):
        path.write_text(text)
        assert "estimated" not in summary(folder, chosen)


@pytest.mark.parametrize("points", [0, 1, 30])
def test_the_curve_is_drawn_for_any_number_of_points(folder: RunFolder, points: int) -> None:
    records = [r for step in range(1, points + 1) for r in (training(step), evaluation(step))]
    path = draw_curve(written(folder, *records, training(points + 1, float("nan"))), CONFIG.task, "a title")
    with Image.open(path) as image:
        assert image.size == (960, 720)
    assert not list(folder.path.glob("*.tmp*"))


def test_tensorboard_holds_the_same_numbers(folder: RunFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")])
def test_durations_are_written_in_readable_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_new_start_voids_all_earlier_records(folder: RunFolder) -> None:
    start = StartRecord(0, 1e9, 1, 10, 1, "cpu", "float32", "top1", "higher")
    written(folder, start, training(4), start, training(3))
    assert [(row["kind"], row["step"]) for row in read_metrics(folder.metrics)] == [("start", 0), ("train", 3)]
