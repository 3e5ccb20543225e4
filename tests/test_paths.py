"""Local paths of names from outside."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher import paths
from launcher.errors import UserError
from launcher.paths import local_path

OUTSIDE = ["", ".", "/etc/passwd", "a/../../b", "..", "..\\b", "C:\\b", "c:b", "a\0b", "\\\\host\\b", "link/b", "link"]
INSIDE = ["config.yaml", "checkpoints/step-00000010.pt", "logs/rank-0.log", "a..b/..c", "ü/x y"]
PARTS = st.sampled_from(["a", "..", ".", "", "/", "\\", "C:", "\0", "link", "\x1b[31m", "..\\..", "x" * 300])


@given(st.lists(PARTS, max_size=6).map("/".join) | st.lists(PARTS, max_size=6).map("".join) | st.text(max_size=20))
@example("../outside")
@example("a/../../outside")
@example("link/file")
@example("C:\\Windows\\file")
def test_a_name_from_outside_is_below_its_folder_or_refused(name: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "run").resolve()
        folder.mkdir()
        (folder / "link").symlink_to("/tmp")
        with suppress(ValueError):
            path = local_path(folder, name)
            assert path.resolve().is_relative_to(folder)
            assert path != folder
            for backwards in (name, name.replace("\\", "/")):
                assert Path(os.path.normpath(folder / backwards)).is_relative_to(folder)


@pytest.mark.parametrize("name", INSIDE)
def test_an_ordinary_name_is_accepted(tmp_path: Path, name: str) -> None:
    assert local_path(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path.parent)
    with pytest.raises(ValueError, match=r"leads out of its folder|is a link"):
        local_path(tmp_path, name)


def test_a_user_without_a_home_folder_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    with pytest.raises(UserError, match="no home folder; set HOME"):
        paths.home()
    assert paths.cache() == Path(os.environ["XDG_CACHE_HOME"], "train-launcher")
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(UserError, match="no home folder; set HOME"):
        paths.cache()


def test_a_user_without_a_home_folder_gets_a_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.ensure_home() is None
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"train-home-{os.getuid()}"
    note = paths.ensure_home()
    assert f"HOME={folder}" in str(note)
    assert (paths.home(), folder.stat().st_mode & 0o777) == (folder, 0o700)
    for spoil in (lambda: folder.chmod(0o777), lambda: (folder.rmdir(), folder.symlink_to(tmp_path)), folder.touch):
        monkeypatch.delenv("HOME")
        spoil()
        assert paths.ensure_home() is None
        assert "HOME" not in os.environ
        monkeypatch.setenv("HOME", "")
        if folder.is_symlink():
            folder.unlink()
