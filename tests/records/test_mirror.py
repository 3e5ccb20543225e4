"""`checkpoint.mirror`: a run in a bucket outlives its machine; the S3 server is moto's."""

import os
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from launcher.errors import UserError
from launcher.records import mirror
from launcher.records.metrics import read_metrics
from launcher.records.mirror import Mirror
from launcher.records.run_folder import RunFolder
from launcher.training import checkpoint
from tests.covering import sweep
from tests.data.sources.buckets import Bucket, stall_quickly
from tests.runs import (
    SMALL,
    Here,
    Train,
    draw_nothing,
    ended,
    processes_of,
    same,
    slow_down,
    steps_done,
    use_tiny,
    wait_for,
)
from tests.trainers import TASKS

RUN = [*SMALL, "checkpoint.every=2ba", "run_name=first"]
MIRROR = "checkpoint.mirror=s3://mine/runs"


@pytest.fixture
def bucket(s3: Bucket, tmp_path: Path) -> Any:
    """An empty bucket `mine` of an S3 server on this machine, as s3fs's file system."""
    from s3fs import S3FileSystem

    s3.hold(tmp_path / "empty")
    return S3FileSystem(use_listings_cache=False)


def names(bucket: Any) -> list[str]:
    return sorted(path.removeprefix("mine/runs/first/") for path in bucket.find("mine/runs/first"))


@pytest.mark.system
@pytest.mark.skeleton
def test_a_twice_killed_machine_with_an_empty_disk_resumes_from_the_bucket_to_the_same_bits(
    tmp_path: Path, bucket: Any
) -> None:
    """Once by the same command, and once by `resume`."""
    environment = dict(os.environ)
    whole = Train(tmp_path / "whole", environment, before=(use_tiny, draw_nothing))
    lost = Train(tmp_path / "lost", environment, before=(use_tiny, draw_nothing, slow_down))
    for one in (whole, lost):
        one.folder.mkdir()
    expected = whole.decided(whole.small("first", *RUN))
    run = lost.folder / "runs" / "first"

    def is_copied(resumes: int, before: list[str]) -> bool:
        """Return whether the bucket has a run of so many resumes, and a checkpoint that is not of `before`."""
        present, records = names(bucket), "mine/runs/first/metrics.jsonl"
        # note: without its config, which is copied last, a run starts again
        if not {"config.yaml", "metrics.jsonl"} <= {*present}:
            return False
        steps = [name for name in present if "step" in name]
        return bucket.cat(records).count(b'"resume"') == resumes and steps[-1:] > before

    for resumes in (0, 1):
        before = [name for name in names(bucket) if "step" in name][-1:]
        process = lost.start(*RUN, MIRROR)
        wait_for(partial(is_copied, resumes, before))
        for one in processes_of(run):
            one.kill()
        process.communicate(timeout=60)
        shutil.rmtree(lost.folder / "runs")
    whole.folder = lost.folder
    assert "runs/first is fetched from s3://mine/runs/first" in whole("resume", "s3://mine/runs/first").stdout
    files = {path.relative_to(run).as_posix() for path in run.glob("checkpoints/*.pt")}
    assert {"checkpoints/step-00000018.pt", "config.yaml", "metrics.jsonl"} <= set(names(bucket))
    assert {name for name in names(bucket) if name.startswith("checkpoints")} <= files
    assert [row["kind"] for row in read_metrics(run / "metrics.jsonl")].count("resume") == 2
    assert same(whole.decided(run), expected)


def test_a_mirror_that_cannot_be_used_is_refused_before_the_run(here: Here) -> None:
    for words, expected in (
        (["checkpoint.mirror=s3"], "must be a URL such as s3://mine/runs"),
        (["checkpoint.mirror=nowhere://mine"], "cannot be used (ValueError: Protocol not known: nowhere)"),
    ):
        assert expected in here(*RUN, *words, code=2).stderr
    assert "needs run_name=NAME" in here(*SMALL, "checkpoint.mirror=memory://mine", code=2).stderr
    assert "no run there" in here("resume", "memory://mine/none", code=2).stderr
    assert not list(here.folder.glob("runs/*"))


def test_a_run_waits_for_its_last_copy_without_a_warning(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless that copy fails too; each copy takes longer than the interval of checkpoints."""
    put = LocalFileSystem.put_file

    def slowly(*arguments: Any, **keywords: Any) -> None:
        time.sleep(0.2)
        put(*arguments, **keywords)

    monkeypatch.setattr(LocalFileSystem, "put_file", slowly)
    words = [*RUN, f"checkpoint.mirror=file://{here.folder}/bucket"]
    done, run, copy = here(*words), here.folder / "runs" / "first", here.folder / "bucket" / "first"
    assert "warning" not in done.stdout + done.stderr + (run / "logs" / "rank-0.log").read_text()
    for path in (*run.glob("checkpoints/step-00000018.pt"), run / "checkpoints" / "best.pt", run / "metrics.jsonl"):
        assert (copy / path.relative_to(run)).read_bytes() == path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space in the bucket")

    monkeypatch.setattr(LocalFileSystem, "put_file", fail)
    output = here(*words, "run_name=second").stdout
    assert output.rstrip().count("/second lacks checkpoints/step-00000018.pt, checkpoints/best.pt") == 1
    assert "runs/second (no space in the bucket, after 0 s)" in output


def test_a_moved_run_is_mirrored_only_if_that_is_typed_again(here: Here, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    line = f"is mirrored to {url}/first"
    assert line in here(*SMALL, "epochs=2", "run_name=first", f"checkpoint.mirror={url}").stdout
    copies = {path: path.stat().st_mtime_ns for path in (tmp_path / "bucket").rglob("*") if path.is_file()}
    shutil.move(tmp_path / "runs", tmp_path / "theirs")
    run = str(tmp_path / "theirs" / "first")
    refusal = here("resume", run, "epochs=3", code=2).stderr
    assert f"{run} was moved or copied here" in refusal
    assert f"type checkpoint.mirror={url} again" in refusal
    assert copies == {path: path.stat().st_mtime_ns for path in copies}
    assert line in here("resume", run, "epochs=3", f"checkpoint.mirror={url}").stdout
    assert line in here("resume", f"{url}/first", "epochs=4").stdout


def test_a_failed_push_is_a_warning_and_the_next_one_retries(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    push, failures = Mirror.push, iter([OSError("no space in the bucket")])

    def failing(opened: Mirror, folder: RunFolder) -> None:
        for failure in failures:
            raise failure
        push(opened, folder)

    monkeypatch.setattr(Mirror, "push", failing)
    output = here(*RUN, f"checkpoint.mirror=file://{here.folder}/bucket").stdout
    assert output.count("lacks the newest checkpoint (no space in the bucket") == 1
    copy = checkpoint.newest_valid(here.folder / "bucket" / "first" / "checkpoints")
    assert copy is not None
    assert copy["step"] == 18
    again = here(*RUN, "seed=5", "runs=other", f"checkpoint.mirror=file://{here.folder}/bucket", code=2)
    assert "is a run with other values of runs, seed" in again.stderr or "other values of seed" in again.stderr


def test_a_copy_that_differs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")
    checkpoint.save({"step": 2}, (tmp_path / "run" / "checkpoints").mkdir(parents=True) or folder.best)
    opened = Mirror(f"file://{tmp_path}/bucket/run")
    monkeypatch.setattr(
        type(opened._system), "put_file", lambda system, local, remote: Path(remote).write_bytes(b"half")
    )
    with pytest.raises(OSError, match=r"the copy of checkpoints/best\.pt differs"):
        opened.push(folder)
    with pytest.raises(UserError, match="no run there"):
        opened.fetch(tmp_path / "fetched")


def test_a_push_removes_older_checkpoints_and_no_newer_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    copies = tmp_path / "bucket" / "run" / "checkpoints"
    copies.mkdir(parents=True)
    for step in (2, 9):
        (copies / f"step-{step:08}.pt").write_bytes(b"")
    checkpoint.save({"step": 4}, folder.checkpoints / "step-00000004.pt")
    Mirror(f"file://{tmp_path}/bucket/run").push(folder)
    assert sorted(path.name for path in copies.iterdir()) == ["step-00000004.pt", "step-00000009.pt"]


def test_records_are_pushed_in_pieces_of_which_only_the_last_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_PIECE_BYTES", 100)
    folder, bucket = RunFolder(tmp_path / "run"), tmp_path / "bucket" / "run"
    folder.path.mkdir()
    folder.config.write_text("{}")
    opened = Mirror(f"file://{bucket}")
    for size in (0, 99, 100, 1250, 1251):
        # note: an unchanged piece keeps the mark
        for piece in bucket.glob("metrics*"):
            piece.write_bytes(b"x" * piece.stat().st_size)
        folder.metrics.write_bytes(b"".join(b"%9d\n" % number for number in range(200))[:size])
        opened.push(folder)
    pieces = sorted(bucket.glob("metrics.jsonl.*"), key=lambda path: int(path.suffix[1:]))
    assert [path.stat().st_size for path in pieces] == [100] * 11 + [51]
    assert [path.read_bytes()[:1] for path in pieces] == [b"x"] * 11 + [b" "]
    # note: a machine with an older copy has fewer records
    folder.metrics.write_bytes(whole := folder.metrics.read_bytes()[:1023])
    Mirror(f"file://{bucket}").push(folder)
    again = Mirror(f"file://{bucket}")
    assert again.fetch(tmp_path / "fetched").metrics.read_bytes() == whole
    assert not list((tmp_path / "fetched").glob("metrics.jsonl.*"))
    (bucket / "metrics.jsonl.7").unlink()
    with pytest.raises(UserError, match=r"metrics\.jsonl\.7 is missing"):
        again.fetch(tmp_path / "partial")
    assert not (tmp_path / "partial").exists()


def test_a_mirror_that_does_not_respond_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("{}")
    Mirror(f"file://{tmp_path}/bucket").push(folder)
    opened = Mirror(f"file://{tmp_path}/bucket")
    monkeypatch.setattr(mirror, "_SECONDS", 0.1)
    monkeypatch.setattr(LocalFileSystem, "get_file", lambda *_: time.sleep(2))
    with pytest.raises(UserError, match=r"cannot be copied to .* \(TimeoutError: no response within 0 s\); try again"):
        opened.fetch(tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    monkeypatch.setattr(LocalFileSystem, "exists", lambda *_: time.sleep(1))
    with pytest.raises(UserError, match=r"cannot be used \(TimeoutError: no response within 0 s\)"):
        Mirror(f"file://{tmp_path}/bucket")


# Words of each kind of run. Its teacher or weights are those of a run that is deleted too.
KINDS = {
    "averages": RUN,
    "distillation": [*RUN, "algorithms.distillation=on", "algorithms.distillation.teacher=runs/other"],
    "fine-tuning": [*RUN, "model.weights=runs/other"],
    **{
        task: [*(word for word in RUN if not word.startswith(("recipe", "dataset=", "algorithms"))), *words]
        for task, words in TASKS.items()
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sweep(KINDS, ["averages"]))
def test_each_kind_of_run_resumes_from_its_mirror_alone(here: Here, kind: str) -> None:
    words, run = [*KINDS[kind], "epochs=2"], here.folder / "runs" / "first"
    if "runs/other" in " ".join(words):
        here(*SMALL, "epochs=2", "run_name=other")
    here(*words)
    expected = here.decided(run)
    shutil.rmtree(run)
    here(*words, f"checkpoint.mirror=file://{here.folder}/bucket", stop_after=3, code=143)
    shutil.rmtree(here.folder / "runs")
    other = Here(here.folder / "other")
    other.folder.mkdir()
    other("resume", f"file://{here.folder}/bucket/first")
    assert same(other.decided(other.folder / "runs" / "first"), expected)


@pytest.mark.slow
def test_a_stalled_mirror_is_a_warning_and_neither_keeps_the_run_nor_a_stop(train: Train) -> None:
    train = replace(train, before=(*train.before, stall_quickly, slow_down))
    words = [*RUN, f"checkpoint.mirror=stalled://{train.folder}/bucket", "checkpoint.asynchronous=false"]
    output = train(*words).stdout
    assert "has not taken a copy for" in output
    assert "/first lacks checkpoints/step-00000018.pt, checkpoints/best.pt, run.json, environment.json," in output
    assert "runs/first (did not respond)" in output
    process = train.start(*words, "run_name=second", "epochs=1000", "eval_every=1000ep")
    run = train.folder / "runs" / "second"
    wait_for(lambda: steps_done(run) > 4)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    assert time.monotonic() - began < 100
    assert train.state(run)["step"] == steps_done(run)


@pytest.mark.parametrize("key", ["../../outside", "a/../../../outside", "..\\outside", "/outside"])
def test_a_key_that_leads_out_of_the_run_folder_is_refused(tmp_path: Path, key: str) -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/first/config.yaml", b"")
    hostile = f"/bucket/first/{key}"
    system.store[hostile] = type(system.store["/bucket/first/config.yaml"])(system, hostile, b"written")
    try:
        with pytest.raises(UserError, match=r"is not the mirror of a run: the name .*outside' leads out of its folder"):
            Mirror("memory://bucket/first").fetch(tmp_path / "runs" / "first")
    finally:
        system.store.clear()
    assert [*tmp_path.rglob("*")] == [tmp_path / "runs"]
