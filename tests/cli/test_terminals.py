"""Terminals without Unicode, and machines with little memory: commands end in plain lines."""

import errno
import io
import os
import re
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import main as cli
from launcher.launch.watch import describe
from tests.commands import execute
from tests.made_runs import MakeRun

LITTLE = 600 * 2**20  # bytes, of which torch needs more


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plan", "recipe=mild"], "blurpool -> channels_last -> ema"),
        (["compare", "runs"], "tradeoff curves (* on the Pareto front"),
        (["ls"], "baseline"),
        (["plan", "runs=\u03bb", "seed=\u03bb"], r"seed=\u03bb"),
    ],
)
def test_a_terminal_without_unicode_gets_all_the_output(
    words: list[str], expected: str, encoding: str, tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run("runs/a")
    monkeypatch.chdir(tmp_path)
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", output)
    assert cli.main(words) == (2 if "seed" in expected else 0)
    output.flush()
    assert expected in output.buffer.getvalue().decode(encoding)


def of_system(number: int, *file: Path) -> OSError:
    return OSError(number, os.strerror(number), *file)


NO_MEMORY, NO_PROCESS = r"not enough memory \(.*", r"no further process or thread can start \(.*ulimit -u.*"
FILE = Path("runs/a/lock")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), 1, NO_MEMORY),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 1, NO_MEMORY),
        (of_system(errno.ENOMEM), 1, NO_MEMORY),
        (RuntimeError("can't start new thread"), 1, NO_PROCESS),
        (of_system(errno.EAGAIN), 1, NO_PROCESS),
        (of_system(errno.EACCES, FILE), 2, f"{FILE}: .*; change its permissions, or choose another folder"),
        (of_system(errno.EROFS, FILE), 2, f"{FILE}: .*; mount it writable, or choose another folder"),
    ],
)
def test_a_limit_of_the_machine_is_one_line(
    error: Exception, code: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    ended, _, errors = execute("ls")
    assert ended == code
    assert re.fullmatch(f"error: {line}\n", errors)


@pytest.mark.slow
def test_a_run_under_a_limit_of_memory_ends_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launcher", "recipe=none", "launch=cpu", "epochs=1", f"runs={tmp_path}"]
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (LITTLE, LITTLE))
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(("error: not enough memory (", "error: no further process or thread can start ("))
    assert "ulimit -v)" in line


def test_a_rank_without_memory_fails_with_the_keys_to_change(tmp_path: Path) -> None:
    reason = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9437184 bytes"
    recorded = {"time": 1.0, "message": {"message": reason, "extraInfo": {"py_callstack": "Traceback\n  File"}}}
    process = SimpleNamespace(error_file_data=recorded, exitcode=1, pid=7)
    message = describe(0, process, tmp_path).message  # type: ignore[arg-type]
    assert "Traceback" not in message
    assert "device_batch_size=N" in message
