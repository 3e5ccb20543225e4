"""An installed package whose entry point adds options: a network by `_target_`, and an algorithm in the typed form."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import plugins
from launcher.config import code
from launcher.config.groups import options
from launcher.config.resolved import read
from tests.own_code import DARK, NETWORKS, OWN
from tests.runs import Here

POINTS = "[train.code]\ntheirs = parts_of_theirs\nnets = nets_of_theirs\n"
WORDS = [word for word in OWN if not word.startswith(("code=", "model", "launch.nproc", "algorithms"))]
WORDS += ["launch.nproc=1", "model=theirs", "algorithms=[dark]", "epochs=1", "schedule.warmup=0ba"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package, and another one that fails, as pip does."""
    folder = tmp_path / "site"
    for name, text in {
        "parts_of_theirs/__init__.py": "from parts_of_theirs.dark import Dark\n",
        "parts_of_theirs/dark.py": DARK,
        "nets_of_theirs.py": NETWORKS,
        "parts_of_theirs/conf/model/theirs.yaml": "_target_: nets_of_theirs.TinyNet\nwidth: 4\n",
        "parts_of_theirs/conf/algorithms/dark.yaml": "probability: 0.5\n",
        "parts_of_theirs-1.0.dist-info/METADATA": "Name: parts-of-theirs\nVersion: 1.0\n",
        "parts_of_theirs-1.0.dist-info/entry_points.txt": POINTS,
        "failing_parts.py": "raise ValueError('no')\n",
        "failing_parts-1.0.dist-info/METADATA": "Name: failing-parts\nVersion: 1.0\n",
        "failing_parts-1.0.dist-info/entry_points.txt": "[train.code]\nfailing = failing_parts\ngone = not_there\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start_again(monkeypatch)
    yield folder
    for cached in (plugins.points, plugins.packages, code.installed):
        cached.cache_clear()


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what this process has found and imported."""
    monkeypatch.setenv("TRAIN_CODE", "[]")
    for name in ("parts_of_theirs", "parts_of_theirs.dark", "nets_of_theirs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for cached in (plugins.points, plugins.packages, code.installed):
        cached.cache_clear()


@pytest.mark.system
def test_an_installed_package_brings_options(
    here: Here, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = here("show", *WORDS)
    assert "skipped failing = failing_parts of the package failing-parts: " in shown.stderr
    assert "skipped gone = not_there" in shown.stderr
    assert "theirs" in options("model")
    here(*WORDS, "run_name=r")
    run = tmp_path / "runs" / "r"
    assert read(run / "config.yaml").code == [str(site / name) for name in ("nets_of_theirs.py", "parts_of_theirs")]
    assert (run / "code" / "parts_of_theirs" / "dark.py").read_text() == DARK
    assert not (run / "code" / "failing_parts.py").exists()
    assert "top-1" in here("eval", str(run)).stdout
    here("export", str(run))
    assert (run / "export" / "nets_of_theirs.py").read_text() == NETWORKS
    (site / "parts_of_theirs" / "dark.py").write_text(DARK + "\n")
    start_again(monkeypatch)
    assert "has SHA-256" in here("eval", str(run), code=2).stderr


def test_other_commands_do_not_record_it(here: Here, site: Path) -> None:
    assert "code: []" in here("show").stdout
