"""Files appear complete or not at all, whoever is killed, fails or writes beside."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from launcher import atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("shared", [False, True])
def test_what_fails_leaves_the_former_file_and_nothing_else(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "facts.json"
    atomic.write_text(path, "old", shared=shared)
    with suppress(ZeroDivisionError), atomic.writing(path, shared=shared) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert (path.read_text(), names(tmp_path)) == ("old", ["facts.json"])


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    path, precious = tmp_path / "facts.json", tmp_path / "precious"
    precious.write_text("mine")
    with suppress(FileNotFoundError), atomic.writing(path) as temporary:
        pass
    temporary.symlink_to(precious)
    atomic.write_text(path, "new")
    assert (precious.read_text(), path.read_text(), path.is_symlink()) == ("mine", "new", False)


def killed_while_writing(path: Path) -> None:
    with atomic.writing(path) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_write_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    killed = multiprocessing.get_context("fork").Process(target=killed_while_writing, args=(path,))
    killed.start()
    killed.join()
    assert (len(names(tmp_path)), path.exists()) == (1, False)
    atomic.write_text(path, "whole")
    assert (path.read_text(), names(tmp_path)) == ("whole", ["facts.json"])


def write_often(path: Path, letter: str) -> None:
    for _ in range(200):
        atomic.write_text(path, letter * 10_000, shared=True)


def test_of_processes_that_write_at_once_one_is_whole(tmp_path: Path) -> None:
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
