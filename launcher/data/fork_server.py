"""What the fork server of loader workers imports: their code, and a hook so that its failure is one line."""

import sys
from types import TracebackType

from launcher.data import worker_processes
from launcher.errors import one_line

__all__ = ["worker_processes"]


def _print_in_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print why the server ends; the rank that waits for a worker reports the remedy."""
    print(one_line(f"loader workers: {kind.__name__}: {error}"), file=sys.stderr)


sys.excepthook = _print_in_one_line
