"""What a rank prints goes to its log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import sys, warnings
from pathlib import Path
from launcher.rank.main import _redirect_output
_redirect_output(Path(sys.argv[1]))
print("first", flush=True)
warnings.warn("second")
print("h\\udcffalf", file=sys.stderr)
import os; os._exit(7)
"""


def run(log: Path) -> tuple[int, str]:
    """The exit code, and what the terminal shows."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-c", PRINTS, str(log)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_the_log_has_all_lines_at_once(tmp_path: Path) -> None:
    assert run(tmp_path / "logs" / "rank-0.log") == (7, "")
    lines = (tmp_path / "logs" / "rank-0.log").read_text().splitlines()
    assert lines[0] == "first"
    assert "UserWarning: second" in lines[1]
    assert lines[-1] == "h\\udcffalf"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_what_a_full_disk_does_not_take_goes_to_the_terminal() -> None:
    code, shown = run(Path("/dev/full"))
    assert code == 7
    assert [line in shown for line in ("first\n", "UserWarning: second\n", "h\\udcffalf\n")] == [True] * 3
