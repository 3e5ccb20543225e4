"""An unfinished FFCV file: what ends the process that stores its images, another one continues."""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

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


@contextmanager
def alone(target: Path, identity: str = "x") -> Iterator[UnfinishedFile]:
    with closing(UnfinishedFile(target, len(LABELS), 64, identity)) as one, one.alone():
        yield one


def add(file: UnfinishedFile, number: int, image: Encoded = IMAGE) -> None:
    file.place(number, image.form)
    file.store(number, image.data)


def missing(target: Path, identity: str = "x") -> list[int]:
    with alone(target, identity) as one:
        return one.missing([None] * len(LABELS), quiet)


def test_what_is_stored_is_kept_and_a_damaged_image_or_one_of_another_original_is_missing(target: Path) -> None:
    with alone(target) as one:
        one.place(0, IMAGE.form, source=5)
        one.store(0, IMAGE.data)
        add(one, 1)
    assert missing(target) == [2]
    with alone(target) as one:
        assert one.missing([6, None, None], quiet) == [0, 2]
    with partial_files(target)[0].open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    assert missing(target) == [0, 1, 2]


def test_an_image_that_is_encoded_again_has_its_place_again_and_a_larger_one_the_next(target: Path) -> None:
    with alone(target) as one:
        one.place(0, IMAGE.form)
        add(one, 1)
        add(one, 0)
        add(one, 0)
        add(one, 2, LARGER)
        with one.finished(LABELS) as finished:
            assert (finished.samples, finished.converted) == (3, {"JPEG named .png": 2})
    file = open_beton(target)
    first_place = int(file.pieces["place"][0])
    assert [int(place) - first_place for place in file.rows["f0"]["place"]] == [0, 6, 12]
    assert file.rows["f1"].tolist() == LABELS.tolist()
    assert not any(path.exists() for path in partial_files(target))


def test_a_process_that_waited_for_one_that_finished_does_not_change_the_file(target: Path) -> None:
    waiting = UnfinishedFile(target, len(LABELS), 64, "x")
    with alone(target) as one:
        add(one, 2)
        with one.finished(LABELS):
            pass
    whole = target.read_bytes()
    with closing(waiting), waiting.alone():
        assert waiting.missing([None] * 3, quiet) == [0, 1, 2]
        add(waiting, 0)
    assert target.read_bytes() == whole


def test_what_a_killed_process_left_after_the_last_place_is_removed(target: Path) -> None:
    with alone(target) as one:
        for number in (0, 1):
            add(one, number)
    data, table = (path.read_bytes() for path in partial_files(target))
    with alone(target) as one:
        one._set_end(1 << 24)
        with pytest.raises(ZeroDivisionError), one.finished(LABELS):
            1 / 0  # noqa: B018
    assert partial_files(target)[0].stat().st_size > 1 << 24
    with alone(target):
        assert partial_files(target)[1].read_bytes() == table
        assert partial_files(target)[0].stat().st_size == len(data)


def test_other_images_replace_an_unfinished_file_unless_a_process_writes_it(target: Path) -> None:
    with alone(target) as one:
        add(one, 0)
        with pytest.raises(UserError, match="another process is writing"), alone(target, "y"):
            pass
    assert missing(target) == [1, 2]
    assert missing(target, "y") == [0, 1, 2]


def test_without_locks_of_files_one_process_writes_by_a_lease(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with alone(target) as one:
        add(one, 0)
        with one.finished(LABELS) as finished:
            assert finished.samples == 1
    assert "a lease, a file with a heartbeat" in capsys.readouterr().err
