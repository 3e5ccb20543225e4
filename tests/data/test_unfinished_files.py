"""An unfinished FFCV file: several processes store its images, and one finishes it, whatever ends them."""

import errno
import fcntl
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from launcher.data.ffcv import unfinished
from launcher.data.ffcv.beton import PIXELS, open_beton
from launcher.data.ffcv.unfinished import Encoded, Form, UnfinishedFile, partial_files
from launcher.data.workers import quiet
from launcher.errors import UserError

IMAGE = Encoded(Form(PIXELS, 2, 1, 6, "JPEG named .png"), bytes(range(6)))
LARGER = Encoded(Form(PIXELS, 3, 1, 9, None), bytes(range(9)))
LABELS = np.array([1, 0, 1])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "train.beton"


def opened(target: Path, identity: str = "x", shared: bool = True) -> UnfinishedFile:
    return UnfinishedFile(target, len(LABELS), 64, identity, shared=shared)


def test_processes_share_what_is_stored_and_a_damaged_image_is_none(target: Path) -> None:
    first, second = opened(target), opened(target)
    first.add(1, IMAGE)
    assert (second.read(1), second.read(0)) == (IMAGE, None)
    assert not second.is_complete
    with partial_files(target)[0].open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    assert opened(target).read(1) is None
    for number in (0, 2):
        second.add(number, IMAGE)
    assert first.is_complete
    assert opened(target, "y").read(0) is None


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_removes_all_with_one_line(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = opened(target), opened(target)
    first.add(0, IMAGE)
    monkeypatch.setattr(unfinished, "write_all", full)
    for one in (first, second, first):
        one.add(1, IMAGE)
    assert capsys.readouterr().out.count("\n") == 1
    assert (first.read(1), second.read(1)) == (None, None)
    assert opened(target).read(0) is None


def test_a_full_disk_removes_nothing_that_train_prepare_has_begun(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(opened(target, shared=False)) as prepared, prepared.alone():
        prepared.place(0, IMAGE.form)
        prepared.store(0, IMAGE.data)
    run = opened(target)
    monkeypatch.setattr(unfinished, "write_all", full)
    for number in (1, 2):
        run.add(number, IMAGE)
    assert capsys.readouterr().out.count("what is stored stays for train prepare\n") == 1
    assert (opened(target).read(0), run.read(1)) == (IMAGE, None)


def test_a_full_disk_removes_nothing_that_another_process_finishes(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = opened(target), opened(target)
    other.add(0, IMAGE)
    monkeypatch.setattr(unfinished, "write_all", full)
    with other.alone():
        run.add(1, IMAGE)
    assert opened(target).read(0) == IMAGE


def test_an_image_that_is_encoded_again_has_its_place_again_and_another_process_has_the_next(target: Path) -> None:
    first, second = opened(target), opened(target)
    first.place(0, IMAGE.form)
    second.add(1, IMAGE)
    for one in (first, second):
        one.add(0, IMAGE)
    second.add(2, LARGER)
    with second.finished(LABELS) as finished:
        assert (finished.samples, finished.converted) == (3, {"JPEG named .png": 2})
    file = open_beton(target)
    first_place = int(file.pieces["place"][0])
    assert [int(place) - first_place for place in file.rows["f0"]["place"]] == [0, 6, 12]
    assert file.rows["f1"].tolist() == LABELS.tolist()
    assert not any(path.exists() for path in partial_files(target))


def test_nothing_is_stored_in_a_finished_or_removed_file_which_is_still_read(target: Path) -> None:
    one, other = opened(target), opened(target)
    one.add(2, IMAGE)
    with other.finished(LABELS):
        pass
    whole = target.read_bytes()
    one.add(0, IMAGE)
    assert target.read_bytes() == whole
    assert (one.read(2), one.read(0)) == (IMAGE, None)
    again = opened(target)
    for path in partial_files(target):
        path.unlink()
    again.add(0, IMAGE)
    assert again.read(0) is None


def test_what_a_killed_process_left_is_removed_and_what_a_crash_left_is_missing(target: Path) -> None:
    one = opened(target)
    for number in (0, 1):
        one.add(number, IMAGE)
    data, table = (path.read_bytes() for path in partial_files(target))
    one._set_end(1 << 24)
    with pytest.raises(ZeroDivisionError), one.finished(LABELS):
        1 / 0  # noqa: B018
    assert partial_files(target)[0].stat().st_size > 1 << 24
    again = opened(target)
    assert partial_files(target)[1].read_bytes() == table
    assert partial_files(target)[0].stat().st_size == len(data)
    with partial_files(target)[0].open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    assert again.missing([None] * 3, quiet) == [1, 2]
    assert again.missing([None] * 3, quiet) == [1, 2]


def test_other_images_replace_an_unfinished_file_unless_a_process_finishes_it(target: Path) -> None:
    one = opened(target)
    with one.alone(), pytest.raises(UserError, match="another process is writing"):
        opened(target, "y")
    one.add(0, IMAGE)
    assert opened(target, "y").read(0) is None
    one.add(1, IMAGE)
    assert opened(target, "y").read(1) is None


def test_without_locks_of_files_one_process_writes_by_a_lease(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match="No locks available"):
        opened(target)
    with closing(opened(target, shared=False)) as one, one.alone():
        one.place(0, IMAGE.form)
        one.store(0, IMAGE.data)
        with one.finished(LABELS) as finished:
            assert finished.samples == 1
    assert "a lease, a file with a heartbeat" in capsys.readouterr().err
