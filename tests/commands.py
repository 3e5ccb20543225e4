"""One command in this process, and what it said."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from launcher.cli.main import main


def execute(*words: str) -> tuple[int, str, str]:
    """Exit code, output and error lines of one command."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(words)
    return code, out.getvalue(), errors.getvalue()


def output_of(*words: str) -> str:
    """What a command prints that works."""
    code, output, errors = execute(*words)
    assert code == 0, errors
    return output


def refused(*words: str) -> str:
    """The one line that a command is refused with."""
    code, _, errors = execute(*words)
    assert code == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors
