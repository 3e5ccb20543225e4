"""The order of failures as it was seen, against the order in which elastic lists them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.launch.failure import describe, first_failure

KILLED, CLOSED = -signal.SIGKILL, -signal.SIGTERM


def failures(folder: Path, *ends: tuple[int, float | None]) -> dict[int, ProcessFailure]:
    """Rank r has process id 100 + r, an exit code and, if it recorded its error, the time of it."""
    made = {}
    for rank, (exit_code, time) in enumerate(ends):
        file = folder / f"{rank}.json"
        if time is not None:
            message = {"message": f"error of {rank}", "extraInfo": {"py_callstack": "Traceback\n", "timestamp": "7"}}
            file.write_text(json.dumps({"message": message, "time": time}))
        made[rank] = ProcessFailure(rank, 100 + rank, exit_code, str(file))
    return made


@pytest.mark.parametrize(
    ("ends", "seen_first", "expected"),
    [
        # the peer was killed for being deaf, long after rank 1's error
        ([(KILLED, None), (1, 5.0)], {101}, 1),
        # both noticed at once: a rank that was killed cannot have been the peer's victim
        ([(1, 5.0), (KILLED, None)], {100, 101}, 1),
        # both noticed at once: the earlier record
        ([(1, 5.2), (1, 5.1)], {100, 101}, 1),
        # elastic's own SIGTERM reached a rank that was not listening yet
        ([(CLOSED, None), (1, 5.0)], {100, 101}, 1),
        # nothing recorded, such as an interpreter that does not start
        ([(1, None), (1, None)], set(), 0),
    ],
)
def test_the_cause_comes_first(
    tmp_path: Path, ends: list[tuple[int, float | None]], seen_first: set[int], expected: int
) -> None:
    rank, process = first_failure(failures(tmp_path, *ends), seen_first)
    assert (rank, process.pid) == (expected, 100 + expected)


@pytest.mark.parametrize(("code", "cause"), [(-signal.SIGSEGV, "killed by SIGSEGV"), (7, "ended with exit code 7")])
def test_the_report_ends_with_where_to_read_on(tmp_path: Path, code: int, cause: str) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "rank-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    ended = failures(tmp_path, (code, None))[0]
    first, *lines, last = describe(0, ended, tmp_path).splitlines()
    assert first.startswith(f"error: rank 0 failed: {cause} (host ")
    assert lines == [f"line {number}" for number in range(80, 100)]
    assert last == f"its whole log: {log}"
