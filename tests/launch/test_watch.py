from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.launch.failure import describe_hang
from launcher.launch.watch import RankWatch
from launcher.rank.heartbeat import Heartbeat, beat_file, stall_file, told_stalls
from launcher.rank.main import done_file, failed_file
from tests.runs import wait_for


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_rank_that_ended_before_it_was_seen_ends_its_peer(tmp_path: Path, code: str) -> None:
    watch = RankWatch(2, tmp_path, tmp_path)
    peer, failing = start("import time; time.sleep(600)"), start(code)
    while Path(f"/proc/{failing.pid}/cmdline").read_bytes():  # empty once it is a zombie
        time.sleep(0.02)
    with watch:
        wait_for(watch.has_failure)
        assert peer.wait(timeout=240) < 0
    assert watch.failed_first == {failing.pid}
    failing.wait()


def test_a_rank_that_was_reaped_before_it_was_seen_is_known_by_what_it_told(tmp_path: Path) -> None:
    watch = RankWatch(2, tmp_path, tmp_path)
    peer = start("import time; time.sleep(600)")
    failed_file(tmp_path, 4_000_000).touch()
    with watch:
        wait_for(watch.has_failure)
        assert peer.wait(timeout=240) < 0
    assert watch.failed_first == {4_000_000}


def test_a_rank_gets_more_time_to_its_first_step(tmp_path: Path) -> None:
    watch = RankWatch(1, tmp_path, tmp_path, hang_timeout=0.2)
    slow = start("import time; time.sleep(600)")
    file = beat_file(tmp_path, slow.pid)
    file.touch()
    with watch:
        time.sleep(1)
        assert not watch.has_failure()
        os.utime(file, (1, 1))
        wait_for(watch.has_failure)
        assert list(watch.hung) == [slow.pid]
        assert slow.wait(timeout=240) < 0


def test_a_failure_is_known_however_soon_the_watch_ends(tmp_path: Path) -> None:
    watch = RankWatch(1, tmp_path, tmp_path)
    with watch:
        failed_file(tmp_path, 4_000_000).touch()
    assert watch.failed_first == {4_000_000}


def test_a_rank_that_ended_well_fails_nobody(tmp_path: Path) -> None:
    earlier = start("import time; time.sleep(600)")
    watch = RankWatch(1, tmp_path, tmp_path)
    done = start("pass")
    done_file(tmp_path, done.pid).touch()
    with watch:
        time.sleep(0.5)
    done_file(tmp_path, done.pid).unlink()  # as the launcher does with all of the folder
    assert not watch.has_failure()
    done.wait()
    assert earlier.poll() is None, "it was no rank"
    earlier.kill()
    earlier.wait()


def test_a_file_that_is_read_for_too_long_is_told_once_and_named_in_a_hang(tmp_path: Path) -> None:
    said: list[str] = []
    watch = RankWatch(1, tmp_path, tmp_path, hang_timeout=60, say=said.append)
    rank = start("import time; time.sleep(600)")
    stall_file(tmp_path, rank.pid).write_text("rank 0 waits for data, reading a.jpg")
    with watch:
        time.sleep(1)
    assert said == ["warning: rank 0 waits for data, reading a.jpg"]
    hang = describe_hang({0: ProcessFailure(0, rank.pid, -9, "")}, {rank.pid: "sleeping"}, watch.stalls, 60, tmp_path)
    assert hang.splitlines()[1] == "rank 0 waits for data, reading a.jpg"
    rank.wait()


def test_a_rank_tells_of_a_file_for_as_long_as_it_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    reading = [Path("a\nb.jpg")]
    heartbeat = Heartbeat()
    heartbeat.start(tmp_path)
    heartbeat.watch_reading(lambda seconds: reading[0] if reading else None, hang_timeout=0.1)
    wait_for(lambda: bool(told_stalls(tmp_path)))
    assert told_stalls(tmp_path)[os.getpid()].startswith("rank 3 waits for data, reading a\\nb.jpg:")
    reading.clear()
    wait_for(lambda: not told_stalls(tmp_path))
