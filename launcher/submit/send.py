"""Handing a job to the cluster's own program."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import UserError

FILE = "{file}"


def send(text: str, command: Sequence[str], suffix: str) -> int:
    """Give a job's text to a command, in a file in the place of `{file}`; returns the command's exit code.

    Raises:
        UserError: the program is not installed.
    """
    program = command[0]
    if shutil.which(program) is None:
        raise UserError(f"{program} is not installed here; without --run the job is printed, for a machine that has it")
    with tempfile.TemporaryDirectory(prefix="train-submit-") as folder:
        file = Path(folder) / f"job{suffix}"
        file.write_text(text)
        return subprocess.run([word.replace(FILE, str(file)) for word in command], check=False).returncode
