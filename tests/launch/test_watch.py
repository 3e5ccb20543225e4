"""The rank that failed first or hangs, as opposed to the order in which elastic lists failures."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.launch.hang import Hang, HangWatch, describe_hang
from launcher.launch.watch import RankWatch, describe, first_failure
from launcher.rank import main
from launcher.rank.signs import WRITE_STACKS, beat_file, connecting_file, done_file
from tests.runs import wait_for

KILLED, CLOSED = -signal.SIGKILL, -signal.SIGTERM


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


def ids(*ranks: subprocess.Popen[bytes]) -> Callable[[], list[int]]:
    return lambda: [rank.pid for rank in ranks]


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.parametrize("reaped", [True, False])
def test_a_rank_that_failed_before_the_first_poll_ends_its_peer(tmp_path: Path, code: str, reaped: bool) -> None:
    peer, failing = start("import time; time.sleep(600)"), start(code)
    watch = RankWatch(ids(peer, failing), tmp_path, tmp_path)
    while Path(f"/proc/{failing.pid}/cmdline").read_bytes():  # empty once it is a zombie
        time.sleep(0.02)
    if reaped:
        failing.wait()
    with watch:
        wait_for(lambda: bool(watch.failed_first))
        assert peer.wait(timeout=240) < 0
    assert watch.failed_first == {failing.pid}
    failing.wait()


def test_ranks_that_start_later_also_receive_the_signal(tmp_path: Path) -> None:
    ranks: list[int] = []
    with RankWatch(lambda: ranks, tmp_path, tmp_path) as watch:
        watch.send(signal.SIGTERM)
        assert not watch.ranks
        late = start("import time; time.sleep(600)")
        ranks.append(late.pid)
        assert late.wait(timeout=240) == -signal.SIGTERM


def test_a_failure_is_detected_when_the_watch_ends_at_once(tmp_path: Path) -> None:
    failing, done = start("import os; os._exit(3)"), start("pass")
    done_file(tmp_path, done.pid).touch()
    failing.wait()
    done.wait()
    with RankWatch(ids(failing, done), tmp_path, tmp_path) as watch:
        pass
    assert watch.failed_first == {failing.pid}


def test_a_rank_that_succeeds_is_not_a_failure(tmp_path: Path) -> None:
    done = start("pass")
    done_file(tmp_path, done.pid).touch()
    with RankWatch(ids(done), tmp_path, tmp_path) as watch:
        time.sleep(0.5)
    assert not watch.failed_first
    done.wait()


BEATS = """
import sys, time
from pathlib import Path
from launcher.rank import signs
from launcher.rank.main import _redirect_output
signs.HEARTBEAT.start(Path(sys.argv[1]) / "beat-7", 0.5)
_redirect_output(Path(sys.argv[2]))
signs.HEARTBEAT.watch_reading(lambda seconds: Path("a\\nb.jpg"))
for _ in range(3):
    time.sleep(0.2)
    signs.HEARTBEAT.beat()
    print(Path(sys.argv[1], "beat-7").stat().st_mtime_ns)
signs.signal.raise_signal(signs.WRITE_STACKS)
print("ended normally")
"""


def test_a_rank_beats_and_writes_its_stacks_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank-3.log"
    command = [sys.executable, "-c", BEATS, str(tmp_path), str(log)]
    done = subprocess.run(command, env={**os.environ, "RANK": "3"}, stderr=subprocess.PIPE, text=True, check=True)
    text = log.read_text()
    assert len(set(text.splitlines()[:3])) == 3, "each beat changes the time of the file"
    assert "most recent call first" in text
    assert "ended normally" in text
    warning = "warning: rank 3 is waiting to read a\\nb.jpg; check that its disk or bucket responds\n"
    assert done.stderr == warning, "it must be printed once, on the terminal"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("timeout", "beats", "ticks", "seconds", "hangs"),
    [
        (8.0, True, 9, 1.0, True),
        (8.0, True, 8, 1.0, False),
        (8.0, False, 599, 1.0, False),  # until the first beat it imports, lists folders and connects
        (8.0, False, 600, 1.0, True),
        (8.0, True, 8, 1000.0, False),  # the watch was suspended too
        (None, True, 1000, 1.0, False),
    ],
)
def test_a_rank_hangs_by_the_time_that_the_watch_was_given(
    tmp_path: Path, timeout: float | None, beats: bool, ticks: int, seconds: float, hangs: bool
) -> None:
    clock, rank = Clock(), os.getpid()
    watch = HangWatch(tmp_path, timeout, clock)
    if beats:
        beat_file(tmp_path, rank).touch()
    results = []
    for _ in range(ticks + 1):
        clock.now += seconds
        results.append(watch.hanging([rank]))
    assert not any(results[:-1])
    assert (results[-1] is not None) == hangs
    assert results[-1] is None or results[-1].processes == (rank,)


def test_ranks_that_connect_have_a_limit_of_their_own_and_all_silent_ones_are_named(tmp_path: Path) -> None:
    clock, ranks = Clock(), [os.getpid(), os.getppid()]
    watch = HangWatch(tmp_path, 600.0, clock, seconds_to_connect=5.0)

    def after(seconds: int) -> object:
        for _ in range(seconds):
            clock.now += 1
            found = watch.hanging(ranks)
        return found

    connecting_file(beat_file(tmp_path, ranks[0])).touch()
    assert after(100) is None, "the other one has not started to connect"
    connecting_file(beat_file(tmp_path, ranks[1])).touch()
    assert after(5) is None
    found = after(1)
    assert isinstance(found, Hang)
    text = describe_hang(found, {process: rank for rank, process in enumerate(ranks)}, tmp_path)
    assert text.startswith("ranks 0, 1 did not connect within 5 s; set NCCL_DEBUG=INFO"), text
    for rank in ranks:
        connecting_file(beat_file(tmp_path, rank)).unlink()
        beat_file(tmp_path, rank).touch()
    assert after(100) is None
    beat_file(tmp_path, ranks[0]).write_text("later")
    found = after(502)
    assert isinstance(found, Hang)
    assert found.processes == (ranks[1], ranks[0]), "the longest silent one first"


def test_a_rank_that_hangs_is_ended_after_its_stacks(tmp_path: Path) -> None:
    code = f"import faulthandler as f, os, time; f.register({WRITE_STACKS:d}); os.write(1, b'1'); time.sleep(600)"
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.read(1)
    beat_file(tmp_path, rank.pid).touch()
    with RankWatch(ids(rank), tmp_path, tmp_path, HangWatch(tmp_path, 1.0)) as watch:
        stacks = rank.communicate(timeout=240)[1]
    assert watch.failed_first == {rank.pid}
    log = tmp_path / "logs" / "rank-3.log"
    log.parent.mkdir()
    log.write_bytes(stacks)
    assert watch.hang is not None
    text = describe_hang(watch.hang, {rank.pid: 3}, tmp_path)
    assert text == (
        f"rank 3 made no progress for launch.hang_timeout seconds; rank 3 in <module> (<string>:1) (full log: {log})"
    )


def test_a_rank_without_threads_names_the_limit(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("libgomp: Thread creation failed: Resource temporarily unavailable\n")
    failure = describe(0, failures(tmp_path, (1, None))[0], tmp_path)
    assert failure.message.startswith("error: rank 0: no further process or thread can start; use fewer processes")
    assert "\n" not in failure.message
    assert failure.from_outside


@pytest.mark.parametrize(
    "error", [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), RuntimeError("can't start new thread")]
)
def test_a_rank_that_cannot_start_its_guard_leaves_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    for owner, name in ((main.STOP, "install"), (main, "die_with")):
        monkeypatch.setattr(owner, name, lambda *_: None)
    monkeypatch.setattr(main, "guard_group", fail)
    monkeypatch.setattr(main.os, "_exit", sys.exit)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(SystemExit, match="1"):
        main.live("launcher.training.worker:train_rank", tmp_path, 0, tmp_path, None)
    recorded = json.loads((tmp_path / "error.json").read_text())
    assert "no further process or thread can start" in recorded["from_outside"]
    assert "ulimit -u" in recorded["from_outside"]


def failures(folder: Path, *ends: tuple[int, float | None]) -> dict[int, ProcessFailure]:
    """Failures of ranks r with process id 100 + r, an exit code and, if recorded, the time of the error."""
    made = {}
    for rank, (exit_code, when) in enumerate(ends):
        file = folder / f"{rank}.json"
        if when is not None:
            message = {"message": f"error of {rank}", "extraInfo": {"py_callstack": "Traceback\n", "timestamp": "7"}}
            file.write_text(json.dumps({"message": message, "time": when}))
        made[rank] = ProcessFailure(rank, 100 + rank, exit_code, str(file))
    return made


@pytest.mark.parametrize(
    ("ends", "seen_first", "expected"),
    [
        # the peer was killed because it was blocked, long after the error of rank 1
        ([(KILLED, None), (1, 5.0)], {101}, 1),
        # both detected at once: a rank that was killed, or hung, is not a consequence of the peer's failure
        ([(1, 5.0), (KILLED, None)], {100, 101}, 1),
        ([(1, 5.0), (1, None)], {100, 101}, 1),
        # both detected at once: the earlier record
        ([(1, 5.2), (1, 5.1)], {100, 101}, 1),
        # elastic's SIGTERM killed a rank without a handler
        ([(CLOSED, None), (1, 5.0)], {100, 101}, 1),
        # nothing recorded, such as an interpreter that does not start
        ([(1, None), (1, None)], set(), 0),
    ],
)
def test_the_first_failure_is_reported_as_the_cause(
    tmp_path: Path, ends: list[tuple[int, float | None]], seen_first: set[int], expected: int
) -> None:
    rank, process = first_failure(failures(tmp_path, *ends), seen_first)
    assert (rank, process.pid) == (expected, 100 + expected)


@pytest.mark.parametrize(("code", "cause"), [(-signal.SIGSEGV, "killed by SIGSEGV"), (7, "ended with exit code 7")])
def test_the_message_of_a_failure_ends_with_the_path_of_the_log(tmp_path: Path, code: int, cause: str) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "rank-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    ended = failures(tmp_path, (code, None))[0]
    first, *lines, last = describe(0, ended, tmp_path).message.splitlines()
    assert first.startswith(f"error: rank 0 failed: {cause} (host ")
    assert lines == [f"line {number}" for number in range(80, 100)]
    assert last == f"full log: {log}"
