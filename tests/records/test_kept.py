"""A run folder that goes away under its run, in every way, and what only looks like it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.records.folder import create
from launcher.records.kept import KeptFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = create(tmp_path, "run", unique=False).path
    (path / "lock").write_text("process 1 on this\n")
    (path / "metrics.jsonl").write_text("a record\n")
    return path


def replace(run: Path) -> None:
    shutil.copytree(run.rename(run.with_name("moved")), run)
    (run / "lock").write_text("process 2 on another\n")


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (shutil.rmtree, "the folder is gone"),
        (lambda run: run.rename(run.with_name("moved")), "the folder is gone"),
        (lambda run: (shutil.rmtree(run), run.write_text("")), "the folder is gone"),
        (replace, "lock is another"),
        (lambda run: (run / "lock").unlink(), "lock is gone"),
        (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl is gone"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "metrics.jsonl was cut short or replaced"),
    ],
)
@pytest.mark.parametrize("noticed", ["while it trains", "at its end"])
def test_a_loss_is_told_once(run: Path, loss: Callable[[Path], object], told: str, noticed: str) -> None:
    lost = threading.Event()
    # note: a folder goes file by file, which must be over before the second look
    kept = KeptFolder(run, lost.set, interval=0.2 if noticed == "while it trains" else 3600)
    with kept:
        kept.look()
        loss(run)
        assert lost.wait(60 if noticed == "while it trains" else 0) == (noticed == "while it trains")
    assert kept.lost == told


def test_what_a_run_does_to_its_folder_is_no_loss(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    with KeptFolder(run, lambda: pytest.fail("lost"), interval=0.001) as kept:
        with (run / "metrics.jsonl").open("a") as metrics:
            for number in range(100):
                metrics.write(f"record {number}\n")
                metrics.flush()
        (run / "checkpoints" / "step-1.pt").write_bytes(b"")
        shutil.rmtree(run / "logs")
    assert kept.lost is None
