import errno
import hashlib
import io
import os
import resource
import signal
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import UserError
from launcher.files.disk import DiskError
from launcher.records.run_folder import RunFolder, checkpoint_name
from launcher.training import checkpoint
from launcher.training.checkpoint import DamagedCheckpoint, load, newest_valid, prune, save
from tests.runs import same
from tests.two_ranks import in_a_fork


def state(step: int) -> dict:
    return {
        "step": step,
        "epoch": 3,
        "config": "abc",
        "weights": OrderedDict(w=torch.arange(1000.0) + step, n=torch.tensor(7), h=torch.ones(3, dtype=torch.bfloat16)),
        "nested": [1, 2.5, None, True, ("a", {"b": torch.zeros(2, 3)})],
    }


def write(folder: Path, *steps: int) -> list[Path]:
    paths = [folder / checkpoint_name(step) for step in steps]
    for step, path in zip(steps, paths, strict=True):
        save(state(step), path)
    return paths


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_loaded_state_equals_the_saved_one(tmp_path):
    (path,) = write(tmp_path / "new", 5)
    loaded = load(path)
    assert path.name == "step-00000005.pt"
    assert same(loaded, state(5))
    assert not same(loaded, state(6))


def test_torch_reads_the_file_and_its_last_bytes_are_the_digest_of_the_others(tmp_path):
    (path,) = write(tmp_path, 5)
    assert same(torch.load(path, weights_only=True)["state"], state(5))
    data = path.read_bytes()
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    (path,) = write(tmp_path_factory.mktemp("whole"), 1)
    return path.read_bytes()


@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_any_changed_bit_and_any_truncation_is_detected(tmp_path_factory, whole, data):
    position = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[position] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("damaged") / checkpoint_name(1)
    for content in (bytes(changed), whole[:position]):
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match=f"{checkpoint_name(1)}.*damaged"):
            load(path)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"step-00000001\.pt: cannot be read: No such file"):
        load(tmp_path / checkpoint_name(1))


def test_the_newest_checkpoint_is_that_of_the_largest_step(tmp_path, capsys):
    write(tmp_path, 900, 123456789, 20)
    (tmp_path / "my-notes.pt").write_text("no checkpoint")
    assert newest_valid(tmp_path)["step"] == 123456789
    assert not capsys.readouterr().out


def test_damaged_newer_files_are_skipped_and_printed(tmp_path, capsys):
    paths = write(tmp_path, 1, 2, 3, 4)
    flip_bit(paths[2], 700)
    paths[3].write_bytes(b"")
    assert newest_valid(tmp_path)["step"] == 2
    damaged = capsys.readouterr().out.splitlines()
    assert [str(paths[3]) in damaged[0], str(paths[2]) in damaged[1]] == [True, True]


def test_a_folder_without_a_valid_checkpoint_has_no_newest_one(tmp_path):
    assert newest_valid(tmp_path) is None
    assert newest_valid(tmp_path / "nowhere") is None
    (path,) = write(tmp_path, 1)
    flip_bit(path, 10)
    assert newest_valid(tmp_path) is None


def test_the_best_checkpoint_replaces_damaged_ones_which_the_next_one_deletes(tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for path in write(folder, 30, 40):
        path.write_bytes(b"")
    save({"step": 10}, folder / "best.pt")
    assert newest_valid(folder)["step"] == 10
    assert f"{folder}/best.pt is used: it is intact, at step 10" in capsys.readouterr().out
    write(folder, 11)
    prune(folder, keep=1, step=11)
    assert {file.name for file in folder.iterdir()} == {checkpoint_name(11), "best.pt"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("call", ["open", "scandir"])
def test_a_file_that_cannot_be_read_is_an_error_and_neither_damaged_nor_missing(
    tmp_path, monkeypatch, capsys, number, call
):
    """Once it is read again; a lasting error ends the run, whose checkpoints remain."""
    write(tmp_path, 1, 2, 3)
    fails, real = [True], {"open": io.open, "scandir": os.scandir}[call]

    def failing(path, *arguments, **named):
        if str(path).startswith(str(tmp_path)) and fails and (call == "scandir" or "3.pt" in str(path)):
            fails.pop()
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr("launcher.files.disk.PAUSES", (0.0, 0.0))
    monkeypatch.setattr({"open": io, "scandir": os}[call], call, failing)
    if number != errno.EACCES:
        assert newest_valid(tmp_path, accept_loss=False)["step"] == 3
    fails += [True] * 3
    with pytest.raises(DiskError, match=f"{tmp_path}.*{os.strerror(number)}; "):
        newest_valid(tmp_path, accept_loss=False)
    monkeypatch.undo()
    assert newest_valid(tmp_path)["step"] == 3
    assert not capsys.readouterr().out


def test_a_resume_loses_no_more_than_one_checkpoint_without_a_word(tmp_path):
    run = RunFolder(tmp_path)
    write(run.checkpoints, 10, 20, 30)
    save({"step": 20}, run.best)
    flip_bit(run.checkpoints / checkpoint_name(30), 700)
    assert newest_valid(run.checkpoints, accept_loss=False)["step"] == 20
    flip_bit(run.checkpoints / checkpoint_name(20), 700)
    damaged = [run.checkpoints / checkpoint_name(step) for step in (30, 20)]
    expected = rf"2 of the newest checkpoints .* damaged.*step-00000010.* type rm {damaged[0]} {damaged[1]}$"
    with pytest.raises(UserError, match=expected):
        newest_valid(run.checkpoints, accept_loss=False)
    for path in damaged:
        path.unlink()
    assert newest_valid(run.checkpoints, accept_loss=False)["step"] == 10
    write(run.checkpoints, 11)
    for path in (run.best, *(run.checkpoints / checkpoint_name(step) for step in (10, 11))):
        flip_bit(path, 700)
    with pytest.raises(UserError, match=r"none is intact; restore one, or start a new run"):
        newest_valid(run.checkpoints, accept_loss=False)


def test_prune_keeps_the_newest_and_removes_unfinished_files(tmp_path):
    paths = write(tmp_path, 1, 30, 4, 2)
    for name in (".step-00000031.pt.host-7-0a1b2c3d.tmp", ".best.pt.host-7-0a1b2c3d.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    prune(tmp_path, keep=2, step=30)
    assert {file.name for file in tmp_path.iterdir()} == {paths[1].name, paths[2].name, "notes.txt"}
    prune(tmp_path, keep=5, step=30)
    assert paths[1].exists()


def write_with_digest(path: Path, content: object) -> None:
    """Write a file of any content with a valid checksum."""
    torch.save(content, path)
    path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())


@pytest.mark.parametrize("content", [{"format": 2, "state": {}}, {"model": torch.zeros(1)}, [1]])
def test_another_format_is_another_error_than_damage(tmp_path, content):
    write_with_digest(tmp_path / checkpoint_name(1), content)
    with pytest.raises(UserError, match="format") as raised:
        newest_valid(tmp_path)
    assert not isinstance(raised.value, DamagedCheckpoint)


@pytest.mark.parametrize("content", [Path("a"), np.zeros(2), np.float64(1.0)])
def test_saving_refuses_content_that_loading_would_refuse(tmp_path, content):
    write(tmp_path, 1)
    with pytest.raises(TypeError, match="tensors, numbers, strings"):
        save({"content": content}, tmp_path / checkpoint_name(2))
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_name(1)]


@pytest.mark.parametrize("limit", [0, 2000, 300_000])
def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, limit):
    """A limit on file sizes replaces the full disk; the state has 400 kB."""
    write(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(DiskError, match=r"step-00000002\.pt: File too large; raise the limit of file sizes"):
            save({"w": torch.ones(100_000)}, tmp_path / checkpoint_name(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_name(1)]


def save_and_be_killed(folder, step):
    """Save one checkpoint, and half of another before SIGKILL."""
    save({"step": 1, "w": torch.ones(5000)}, folder / checkpoint_name(1))
    whole_save = torch.save

    def half_save(state, file):
        buffer = io.BytesIO()
        whole_save(state, buffer)
        file.write(buffer.getvalue()[: buffer.tell() // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    torch.save = half_save
    save({"step": 2, "w": torch.ones(5000)}, folder / checkpoint_name(step))


@pytest.mark.parametrize("step", [1, 2])
def test_a_process_killed_while_saving_leaves_the_previous_file(tmp_path, step):
    """The unfinished file has a new name, or that of the only checkpoint."""
    in_a_fork(save_and_be_killed, tmp_path, step, code=-signal.SIGKILL)
    assert [path.name for path in tmp_path.glob("*.pt")] == [checkpoint_name(1)]
    assert newest_valid(tmp_path)["step"] == 1
    prune(tmp_path, keep=1, step=1)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_name(1)]


def test_a_file_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("sync"), sync(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda self, target: (events.append("rename"), replace(self, target))[1])
    checkpoint.save({"step": 1}, tmp_path / checkpoint_name(1))
    assert events == ["sync", "rename", "sync"]
