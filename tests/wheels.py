"""Build and install wheels, without an index."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Run the command of the wheel in a process without the checkout's modules.
TRAIN = """
import sys
import launcher
from launcher.__main__ import main
assert launcher.__file__.startswith(sys.argv.pop(1))
sys.exit(main())
"""


def build(folder: Path) -> Path:
    """Build the wheel of this project into a folder, and return it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def install(source: Path, site: Path) -> Path:
    """Install a wheel, or a package's folder, into a folder, and return that; dependencies are those of the tests."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True, capture_output=True)
    return site
