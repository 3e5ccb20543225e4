"""The outputs of commands replace only what this program has written, and all others are refused before the work."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.files import outputs, page
from launcher.records.run_folder import checkpoint_name
from tests.commands import output_of, refused
from tests.made_runs import MakeRun

# The words of each command, where FILE is the output; folders are those with a file of the user's in them.
FILES = {
    "report": ["report", "run", "-o", "FILE.html"],
    "report as an image": ["report", "run", "-o", "FILE.png"],
    "card": ["report", "run", "-o", "FILE.md"],
    "mlperf": ["report", "run", "-o", "FILE.log"],
    "csv of images": ["eval", "run", "--csv", "FILE"],
    "look": ["look", "-o", "FILE.html"],
}
FOLDERS = {
    "export": (["export", "run", "-o", "FOLDER"], "model.safetensors"),
    "classes": (["eval", "run", "--by-class", "-o", "FOLDER"], "by_class.csv"),
}


def linked(path: Path) -> None:
    path.symlink_to("mine")


KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("mine"),
    "link": linked,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
}


@pytest.fixture
def run(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run with the file of a checkpoint, beside a file of the user's."""
    monkeypatch.chdir(tmp_path)
    run = make_run("run")
    resolved.write(compose(["epochs=2", "dataset=shapes", "launch=cpu"]).config, run / "config.yaml")
    (run / "checkpoints" / checkpoint_name(20)).touch()
    (tmp_path / "mine").write_text("mine")
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_replaces_no_other(run: Path, tmp_path: Path, kind: str) -> None:
    for command, words in FILES.items():
        path = tmp_path / (name := words[-1])
        KINDS[kind](path)
        before = path.lstat()
        line = refused(*words)
        assert f"{name}: " in line, (command, line)
        assert "set another name" in line, (command, line)
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
        path.rmdir() if kind == "folder" else path.unlink()
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_device_stays_one(run: Path) -> None:
    assert "=/dev/full: is not a regular file, and is never replaced" in refused("eval", "run", "--csv", "/dev/full")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_with_other_files_is_no_output(run: Path, tmp_path: Path, name: str) -> None:
    words, file = FOLDERS[name]
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FOLDER" / file).write_text("mine")
    assert "FOLDER" in (line := refused(*words))
    assert "another" in line
    assert (tmp_path / "FOLDER" / file).read_text() == "mine"
    assert len([*(tmp_path / "FOLDER").iterdir()]) == 1


def test_what_this_program_has_written_is_replaced_until_the_user_edits_it(run: Path, tmp_path: Path) -> None:
    for name in ("report.html", "report.png", "report.pdf", "report.svg"):
        for _ in range(2):
            output_of("report", "run", "-o", name)
    for _ in range(2):
        output_of("report", "run", "-o", "README.md", "-o", "mlperf.log")
    readme = tmp_path / "README.md"
    readme.write_text(readme.read_text().replace("# ", "# My ", 1))
    assert "README.md: exists" in refused("report", "run", "-o", "README.md")
    page.write(tmp_path / "page.html", "a", "b")
    outputs.check_file(tmp_path / "page.html")


def test_an_export_is_replaced_unless_something_else_is_in_it(tmp_path: Path) -> None:
    (folder := tmp_path / "export").mkdir()
    outputs.check_folder(folder)
    (folder / "model_card.json").write_text('{"architecture": "resnet18", "config": {}}')
    outputs.check_folder(folder)
    (folder / "model.py").symlink_to("mine")
    with pytest.raises(UserError, match=r"has model\.py, which is not a regular file"):
        outputs.check_folder(folder)
