"""Build and install wheels, without an index."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.forked import Command

ROOT = Path(__file__).resolve().parents[1]


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


def command(
    site: Path, folder: Path, *words: str, more: Sequence[Path] = (), before: Sequence[Callable[[], object]] = ()
) -> Command:
    """Start `train` of a wheel, as a fork of a process that has imported it; more: folders of other packages."""
    path = os.pathsep.join(map(str, [*more, site]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}
    return Command(["launcher", *words], folder, environment, before=[partial(_use, site), *before], site=site)


def _use(site: Path) -> None:
    """Check that the modules are those of the wheel, and let the packages installed since then add their verbs."""
    for name in ("launcher", "launcher_lab"):
        file = sys.modules[name].__file__
        assert file is not None
        assert Path(file).is_relative_to(site), file
    del sys.modules["launcher.cli.main"]
