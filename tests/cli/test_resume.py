"""`train resume`: which run it finds, and which words change it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.cli import resume
from launcher.cli.resume import newest_unfinished
from launcher.cli.words import read
from launcher.config.compose import compose
from launcher.config.resolved import write
from launcher.errors import UserError
from tests.made_runs import MakeRun


def complete(folder: Path) -> Path:
    """Give a made run every value of a config."""
    write(compose(["launch=cpu"]).config, folder / "config.yaml")
    return folder


def test_the_newest_run_that_has_not_finished_is_found(tmp_path: Path, make_run: MakeRun) -> None:
    complete(make_run("done"))
    with pytest.raises(UserError, match=r"no unfinished run in"):
        newest_unfinished(tmp_path)
    for number, (name, finished) in enumerate([("killed", None), ("stopped", False), ("held", None)]):
        os.utime(complete(make_run(name, finished=finished)) / "metrics.jsonl", (number, number))
    with (tmp_path / "held" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert newest_unfinished(tmp_path) == tmp_path / "stopped"
    assert newest_unfinished(tmp_path) == tmp_path / "held"


@pytest.mark.parametrize("words", [[], ["latest"], ["seed=9"], ["latest", "seed=9"], ["runs/b=1"], ["b=1", "seed=9"]])
def test_resume_finds_the_given_or_newest_run(
    tmp_path: Path,
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    resumed: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("launcher.launch.start.resume", lambda folder, given: resumed.append((str(folder.path), given)))
    monkeypatch.chdir(tmp_path)
    complete(make_run("runs/a", finished=None))
    (tmp_path / "b=1").symlink_to(make_run("runs/b=1"))
    arguments = read(cli.parser_of("resume", resume), "resume", words, list(cli.VERBS))
    resume.main(arguments)
    named = [word for word in words if "b=1" in word]
    assert resumed == [(named[0] if named else "runs/a", ["seed=9"] * ("seed=9" in words))]
    assert ("resuming runs/a, the newest unfinished run" in capsys.readouterr().out) == (not named)
