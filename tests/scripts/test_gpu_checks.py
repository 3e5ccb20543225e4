from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_checks.py"


def test_every_check_still_runs_and_is_on_the_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--dry"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    names = re.findall(r"^(\w+) +\S.*\?$", done.stdout, re.MULTILINE)
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert names == re.findall(r"^    python scripts/gpu_checks\.py (\w+)", page, re.MULTILINE)
