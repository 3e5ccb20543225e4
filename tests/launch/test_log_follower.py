from __future__ import annotations

from pathlib import Path

import pytest

from launcher.launch.terminal import LogFollower
from tests.runs import wait_for


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

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def view() -> View:
    return View()


def test_new_lines_are_shown_whole_and_once(tmp_path: Path, view: View) -> None:
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


def test_a_log_may_come_later_and_hold_any_bytes(tmp_path: Path, view: View) -> None:
    follower = LogFollower(tmp_path / "rank-0.log", view, muted=lambda: False)
    wait_for(lambda: view.polls >= 1)
    (tmp_path / "rank-0.log").write_bytes(b"\xff bytes\n")
    follower.close()
    assert view.lines == ["� bytes"]


def test_lines_that_follow_a_failure_are_not_shown(tmp_path: Path, view: View) -> None:
    log = tmp_path / "rank-0.log"
    failed: list[bool] = []
    follower = LogFollower(log, view, muted=lambda: bool(failed))
    log.write_text("before\n")
    wait_for(lambda: view.lines == ["before"])
    failed.append(True)
    with log.open("a") as file:
        file.write("connection closed by peer\nno newline at the end")
    follower.say("from the launcher")
    follower.close()
    assert view.lines == ["before", "from the launcher"]


def test_what_was_muted_is_not_shown_when_the_next_attempt_begins(tmp_path: Path, view: View) -> None:
    log = tmp_path / "rank-0.log"
    failed = [True]
    follower = LogFollower(log, view, muted=lambda: bool(failed))
    for _ in range(3):
        with log.open("a") as file:
            file.write("connection closed by peer\nno newline at the end")
        follower.forget()
        follower.say("starting again")
        failed.clear()
        polls = view.polls
        wait_for(lambda polls=polls: view.polls >= polls + 3)  # type: ignore[misc]
        with log.open("a") as file:
            file.write("resumed\n")
        wait_for(lambda: view.lines[-1] == "resumed")
        assert view.lines == ["starting again", "resumed"]
        view.lines.clear()
        failed.append(True)
    follower.close()
