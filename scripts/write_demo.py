"""Draw the images of docs/: of the demo, whose results with three seeds are printed, and of docs/results.md.

Run it after a change of what the demo computes or its pages show: make docs-images
It needs chromium and takes half an hour of processor time.
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

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from benchmarks.chromium import evaluated, screenshot  # noqa: E402

DOCS = ROOT / "docs"
IMAGES = ("learning_curve.png", "first_run_look.png", "first_run_confusion.png")
REPORT = "example_report.png"
SEEDS = (42, 1, 2)
_WIDTH, _FRAME, _COLOURS = 900, 200, 256


def command() -> list[str]:
    """Return the words of the demo after `train`, from the Makefile."""
    (line,) = re.findall(r"^\t\.venv/bin/train (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return shlex.split(line)


def train(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "launcher", *words], cwd=folder, check=True)


def words_of(verb: str, run: str = "", page: str = "first_run.md") -> list[str]:
    """Return the words of a verb on a page, with another run in place of the one there."""
    (line,) = re.findall(rf"^    train ({verb} .*)$", (DOCS / page).read_text(), re.MULTILINE)
    return [run if word.startswith("runs/") else word for word in shlex.split(line)]


def draw(folder: Path, run: str) -> None:
    """Write the images of a finished run."""
    train(folder, *words_of("look", run))
    train(folder, *words_of("eval", run))
    shutil.copy(folder / run / "curve.png", DOCS / IMAGES[0])
    shutil.copy(folder / run / "confusion.png", DOCS / IMAGES[2])
    shoot(folder / "look.html", "First step", DOCS / IMAGES[1], height=640)


def shoot(page: Path, heading: str, path: Path, height: int) -> None:
    """Write the part of a page below a heading, in few colours."""
    headings = f"[...document.querySelectorAll('h1, h2')].find((one) => one.textContent.startsWith({heading!r}))"
    # note: its policy forbids scripts
    text = re.sub("<meta http-equiv=[^>]*>", "", page.read_text())
    top = int(evaluated(text, f"return {headings}.getBoundingClientRect().top + scrollY;", width=_WIDTH))
    # note: some versions take the height of their window's frame from that of the page
    screenshot(page, path, width=_WIDTH, height=top + height + _FRAME)
    with Image.open(path) as image:
        part = image.crop((0, max(0, top - 10), image.width, top + height))
    save(part, path)


def save(image: Image.Image, path: Path) -> None:
    """Write an image in few colours."""
    image.convert("RGB").quantize(_COLOURS).save(path, "PNG", optimize=True)


def run(seed: int, folder: Path) -> dict[str, float]:
    """Run the demo, and return its last top-1 accuracy in percent and the minutes of one core."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [*command(), f"seed={seed}", f"run_name=demo-{seed}"]
    train(folder, *words)
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
        draw(Path(name), f"runs/demo-{SEEDS[0]}")
    with tempfile.TemporaryDirectory() as name:
        train(Path(name), *words_of("curve .* dataset=shapes", page="results.md"))
        train(Path(name), "report", "runs", "-o", REPORT)
        with Image.open(Path(name, REPORT)) as image:
            save(image, DOCS / REPORT)
    print(*results, sep="\n")
