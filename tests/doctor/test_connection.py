"""The all-reduce of `train doctor`, between processes on the CPU by gloo."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.doctor import connection
from launcher.doctor.connection import Measured, all_reduce, judge


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_processes_are_measured_and_what_nccl_prints_is_shown(
    count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setattr(connection, "_RANK", "print('NCCL INFO ' * 20_000)" + connection._RANK)
    measured = all_reduce(count, "cpu")
    assert measured.rate > 0, measured
    assert capsys.readouterr().err.count("NCCL INFO") == count * 20_000


def started_or(code: str) -> object:
    plain = connection._started

    def started(rank: int, count: int, kind: str, folder: Path) -> subprocess.Popen[bytes]:
        if rank != 1:
            return plain(rank, count, kind, folder)
        with connection._log(folder, rank).open("wb") as log:
            return subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)

    return started


def test_a_connection_that_never_forms_is_a_problem_that_names_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SECONDS", 4.0)
    monkeypatch.setattr(connection, "_started", started_or("import time; time.sleep(600)"))
    finding = judge(all_reduce(2, "cpu"), 2)
    assert finding.status == "problem"
    assert finding.observation == "100 MB between 2 GPUs not within 4 s (GPUs 0, 1 wait)"
    assert "NCCL_P2P_DISABLE=1" in finding.advice


def test_an_error_of_one_process_is_a_problem_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_started", started_or("raise SystemExit('no such device')"))
    finding = judge(all_reduce(2, "cpu"), 2)
    assert finding.observation == "fails between 2 GPUs: process 1: no such device"
    assert finding.status == "problem"


@pytest.mark.parametrize(
    ("rate", "status", "like"), [(2, "warning", "a PCIe slot"), (12, "ok", "PCIe"), (230, "ok", "NVLink")]
)
def test_a_rate_is_judged_by_what_connects_gpus(rate: float, status: str, like: str) -> None:
    finding = judge(Measured(rate), 8)
    assert (finding.status, like in finding.observation) == (status, True)
