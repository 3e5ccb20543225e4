"""What the fork server of loader workers imports: their code, and hooks so that its failure and theirs are one line."""

import sys
from multiprocessing.process import BaseProcess
from types import TracebackType

from launcher.data import worker_processes
from launcher.errors import FAILED, is_out_of_processes, one_line

__all__ = ["worker_processes"]


def _print_in_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print why the server ends, unless its rank has ended; the rank that waits for a worker reports the remedy."""
    if not issubclass(kind, ConnectionError):
        print(one_line(f"loader workers: {kind.__name__}: {error}"), file=sys.stderr)


def _run(worker: BaseProcess) -> None:
    """Run a worker; a limit of processes, at which its queue cannot start a thread, ends it without a traceback."""
    try:
        _run_worker(worker)
    except (OSError, RuntimeError) as error:
        if not is_out_of_processes(f"{type(error).__name__}: {error}"):
            raise
        _print_in_one_line(type(error), error, None)
        sys.exit(FAILED)


sys.excepthook = _print_in_one_line
_run_worker = BaseProcess.run
BaseProcess.run = _run  # type: ignore[method-assign, assignment]
