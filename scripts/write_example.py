"""Write docs/example_report.html with today's page and published points, and draw docs/example_report.png.

The runs are those in the page; the command of docs/results.md and `train report` measure them again.
Run it after a change of the page or of published.yaml: .venv/bin/python scripts/write_example.py
It needs chromium.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from benchmarks.chromium import screenshot  # noqa: E402
from launcher.records.scales import TOP1  # noqa: E402
from launcher.results.published import published_curves  # noqa: E402
from launcher_lab.study.report import filled, page_data  # noqa: E402
from launcher_lab.study.results import Results  # noqa: E402

PAGE, IMAGE = (ROOT / "docs" / f"example_report.{suffix}" for suffix in ("html", "png"))
TITLE = "Quality against cost"
_WIDTH, _HEIGHT = 1100, 885


def written(text: str) -> str:
    """Return the page with the runs of an older one."""
    (stored,) = re.findall(r'id="data">(.*?)</script>', text)
    data: dict[str, Any] = json.loads(stored)
    today = page_data(Results([], [], published_curves()), data["written"], data["axis"])
    own = [{**curve, "metric": TOP1} for curve in data["curves"] if not curve["published"]]
    kept = {"keys": data["keys"], "base": data["base"], "runs": [{**run, "metric": TOP1} for run in data["runs"]]}
    return filled({**today, **kept, "curves": own + today["curves"]}, TITLE)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    screenshot(PAGE, IMAGE, width=_WIDTH, height=_HEIGHT)
    with Image.open(IMAGE) as image:
        part = image.convert("RGB")
    part.quantize(256).save(IMAGE, "PNG", optimize=True)
