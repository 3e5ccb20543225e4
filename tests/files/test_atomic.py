"""Files appear complete or not at all, even if writers are killed, fail or run concurrently."""

import multiprocessing
import os
import socket
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

from launcher.files import atomic
from launcher.records.run_folder import create


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_only_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    atomic.write_text(path, "old")
    with suppress(ZeroDivisionError), atomic.writing(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert (path.read_text(), names(tmp_path)) == ("old", ["facts.json"])


def test_two_machines_can_write_a_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    # note: in containers both may be process 1 of hosts with the same name
    with atomic.writing(path) as first, atomic.writing(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert (path.read_text(), names(tmp_path)) == ("first", ["facts.json"])
    assert socket.gethostname() in first.name


def write_often(path: Path, letter: str) -> None:
    for _ in range(200):
        atomic.write_text(path, letter * 10_000)


def test_concurrent_writes_leave_one_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    writers = [multiprocessing.get_context("fork").Process(target=write_often, args=(path, one)) for one in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            assert path.read_text() in ("a" * 10_000, "b" * 10_000)
    assert ([writer.exitcode for writer in writers], names(tmp_path)) == ([0, 0], ["facts.json"])


def test_the_file_has_the_usual_permissions(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a", "é")
    (tmp_path / "b").write_text("é")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"]
    assert modes[0] == modes[1]
    assert (tmp_path / "a").read_bytes() == "é".encode()


def test_only_the_temporary_files_of_running_processes_stay(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "index").mkdir()
    with atomic.writing(tmp_path / "index" / "own") as own:
        own.touch()
        killed = own.with_name(own.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-"))
        elsewhere = own.with_name(own.name.replace(socket.gethostname(), "node9"))
        users = own.with_name(".mine.tmp")
        for path in (killed, elsewhere, users):
            path.touch()
        atomic.remove_left_over(tmp_path)
        assert {*(tmp_path / "index").iterdir()} == {own, users}


def test_the_lock_of_a_run_removes_what_a_killed_start_has_left(tmp_path: Path) -> None:
    folder = create(tmp_path, "run")
    left = folder.checkpoints / f".step-00000001.pt.{socket.gethostname()}-999999999-0123abcd.tmp"
    left.touch()
    with folder.locked():
        assert not left.exists()
