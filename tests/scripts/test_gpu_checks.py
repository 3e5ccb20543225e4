from __future__ import annotations

import re
from pathlib import Path

from tests.forked import python

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_checks.py"


def test_every_check_still_runs_and_is_on_the_page(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    names = re.findall(r"^(\w+) +\S.*\?$", python(code, str(SCRIPT), "--dry", folder=tmp_path), re.MULTILINE)
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert names == re.findall(r"^    python scripts/gpu_checks\.py (\w+)", page, re.MULTILINE)
