"""Run the demo with three seeds, and write docs/demo.yaml and docs/learning_curve.png (the curve of the first seed).

Run it after a change of what the demo computes: .venv/bin/python scripts/write_demo.py
"""

import json
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
VALUES, CURVE = ROOT / "docs" / "demo.yaml", ROOT / "docs" / "learning_curve.png"
SEEDS = (42, 1, 2)


def command() -> list[str]:
    """Return the words of the demo after `train`, from the Makefile."""
    (line,) = re.findall(r"^\t\.venv/bin/train (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return shlex.split(line)


def run(seed: int, folder: Path) -> dict[str, float]:
    """Run the demo, and return its last top-1 accuracy in percent and the minutes of one core."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [*command(), f"seed={seed}", f"run_name=demo-{seed}"]
    subprocess.run([sys.executable, "-m", "launcher", *words], cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    records = [
        json.loads(line) for line in (folder / "runs" / f"demo-{seed}" / "metrics.jsonl").read_text().splitlines()
    ]
    top1 = [record["metrics"]["top1"] for record in records if record["kind"] == "eval"][-1]
    return {"seed": seed, "top1": round(100 * top1, 1), "core_minutes": round(seconds / 60, 1)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        results = [run(seed, Path(name)) for seed in SEEDS]
        shutil.copy(Path(name) / "runs" / f"demo-{SEEDS[0]}" / "curve.png", CURVE)
    head = "# Results of the demo by seed, written by scripts/write_demo.py; core_minutes: minutes of one core\n"
    VALUES.write_text(head + yaml.safe_dump(results, sort_keys=False))
