"""The output of a rank goes to its log."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from launcher.files.log_lines import append, of_a_rank, stamp
from launcher.records.progress import LogFollower, TerminalView
from tests.runs import wait_for

PRINTS = """
import sys, warnings
from pathlib import Path
from launcher.rank.main import _redirect_output
_redirect_output(Path(sys.argv[1]))
print("first", flush=True)
warnings.warn("second")
print("h\\udcffalf", file=sys.stderr)
import os; os._exit(7)
"""


def run(log: Path) -> tuple[int, str]:
    """Return the exit code and the output on the terminal."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-c", PRINTS, str(log)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_log_lines_are_written_immediately(tmp_path: Path) -> None:
    assert run(tmp_path / "logs" / "rank-0.log") == (7, "")
    lines = (tmp_path / "logs" / "rank-0.log").read_text().splitlines()
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines)
    assert of_a_rank(lines[0]) == "first"
    assert "UserWarning: second" in lines[1]
    assert of_a_rank(lines[-1]) == "h\\udcffalf"


def test_lines_of_the_launcher_are_logged_and_not_printed_again(tmp_path: Path) -> None:
    log, terminal = tmp_path / "rank-0.log", io.StringIO()
    view = TerminalView(Console(file=terminal), log)
    follower = LogFollower(log, view, muted=lambda: False)
    follower.print("from the launcher\nin two lines")
    append(log, ["of another launcher"])
    with log.open("a") as file:
        file.write(f"{stamp()}of a rank\nof a library\n")
    follower.close()
    assert terminal.getvalue() == "from the launcher\nin two lines\nof a rank\nof a library\n"
    logged = {line.partition("| ")[2] for line in log.read_text().splitlines() if "| " in line}
    assert logged == {"from the launcher", "in two lines", "of another launcher"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_log_lines_go_to_the_terminal_when_the_disk_is_full() -> None:
    code, output = run(Path("/dev/full"))
    assert code == 7
    assert [line in output for line in ("first\n", "UserWarning: second\n", "h\\udcffalf\n")] == [True] * 3


class View:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.polls = 0
        self.closed = False

    def poll(self) -> None:
        assert not self.closed
        self.polls += 1

    def print(self, line: str) -> None:
        assert not self.closed
        self.lines.append(line)

    relay = print

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def view() -> View:
    return View()


def test_new_lines_are_printed_once_and_when_complete(tmp_path: Path, view: View) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("of an earlier attempt\n")
    follower = LogFollower(log, view, muted=lambda: False)
    with log.open("a") as file:
        for part in ("one\ntw", "o\n", "thr"):
            polls = view.polls
            file.write(part)
            file.flush()
            wait_for(lambda polls=polls: view.polls >= polls + 3)  # type: ignore[misc]
    assert view.lines == ["one", "two"]
    follower.close()
    assert view.lines == ["one", "two", "thr"]
    assert view.closed


def test_a_log_may_appear_later_and_contain_any_bytes(tmp_path: Path, view: View) -> None:
    follower = LogFollower(tmp_path / "rank-0.log", view, muted=lambda: False)
    wait_for(lambda: view.polls >= 1)
    (tmp_path / "rank-0.log").write_bytes(b"\xff bytes\n")
    follower.close()
    assert view.lines == ["� bytes"]


def test_log_lines_after_a_failure_are_not_printed(tmp_path: Path, view: View) -> None:
    log = tmp_path / "rank-0.log"
    failed: list[bool] = []
    follower = LogFollower(log, view, muted=lambda: bool(failed))
    log.write_text("before\n")
    wait_for(lambda: view.lines == ["before"])
    failed.append(True)
    with log.open("a") as file:
        file.write("connection closed by peer\nno newline at the end")
    follower.print("from the launcher")
    follower.close()
    assert view.lines == ["before", "from the launcher"]


def test_muted_lines_are_not_printed_after_the_next_attempt_starts(tmp_path: Path, view: View) -> None:
    log = tmp_path / "rank-0.log"
    failed = [True]
    follower = LogFollower(log, view, muted=lambda: bool(failed))
    for _ in range(3):
        with log.open("a") as file:
            file.write("connection closed by peer\nno newline at the end")
        follower.skip()
        follower.print("restarting")
        failed.clear()
        polls = view.polls
        wait_for(lambda polls=polls: view.polls >= polls + 3)  # type: ignore[misc]
        with log.open("a") as file:
            file.write("resumed\n")
        wait_for(lambda: view.lines[-1] == "resumed")
        assert view.lines == ["restarting", "resumed"]
        view.lines.clear()
        failed.append(True)
    follower.close()
