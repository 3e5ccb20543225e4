"""One rank's process: `python -m launcher.launch.rank MODULE:FUNCTION RUN_FOLDER`, started by torch elastic.

Its output goes to the run folder's logs/rank-N.log from the first line on, and what ends it to rank-N.error.json.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from launcher.errors import EXIT_USER_ERROR, UserError
from launcher.launch.signals import STOP

_PR_SET_PDEATHSIG = 1


def main(target: str, run_folder: Path) -> int:
    """Run the target in this process; returns the exit code."""
    STOP.install()
    rank = os.environ["RANK"]
    _die_with_parent()
    _redirect_output(log_file(run_folder, rank))
    try:
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(run_folder)
        return 0
    except UserError as error:
        _record(run_folder, rank, {"user_error": [str(problem) for problem in error.problems]})
        return EXIT_USER_ERROR
    except Exception as error:
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        _record(run_folder, rank, {"error": f"{type(error).__name__}: {error}", "traceback": text})
        return 1


def log_file(run_folder: Path, rank: str | int) -> Path:
    return run_folder / "logs" / f"rank-{rank}.log"


def error_file(run_folder: Path, rank: str | int) -> Path:
    return run_folder / "logs" / f"rank-{rank}.error.json"


def _record(run_folder: Path, rank: str, what: dict[str, Any]) -> None:
    path = error_file(run_folder, rank)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"time": time.time(), **what}))
    temporary.replace(path)


def _redirect_output(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the launcher dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    code = main(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    # note: loader threads and NCCL may hang an ordinary exit; everything is on disk by now
    os._exit(code)
