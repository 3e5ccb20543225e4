"""Run a command in this process and capture its output."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from launcher.cli.main import main


def execute(*words: str) -> tuple[int, str, str]:
    """Return the exit code, output and error output of a command."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(words)
    return code, out.getvalue(), errors.getvalue()


def output_of(*words: str) -> str:
    """Return the output of a command that succeeds."""
    code, output, errors = execute(*words)
    assert code == 0, errors
    return output


def values_of(*words: str) -> Any:
    """Return what a command that succeeds prints with --json."""
    return json.loads(output_of(*words, "--json"))


def refused(*words: str) -> str:
    """Return the one error line of a command that is refused, without the line on the recipe that was chosen."""
    code, _, errors = execute(*words)
    assert code == 2
    errors = "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("auto: "))
    assert errors.startswith("error: "), errors
    assert errors.count("\n") == 1
    return errors
