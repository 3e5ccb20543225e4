"""The arrows between the packages, and what the command line's path may not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "launcher"

# package -> packages of the launcher that it must not import
FORBIDDEN = {
    "config": {"plan", "launch", "training", "algorithms", "models", "data", "records", "study", "cli"},
    "plan": {"launch", "training", "algorithms", "models", "data", "records", "study", "cli"},
    "data": {"launch", "training", "algorithms", "models", "records", "study", "cli"},
    "models": {"launch", "training", "algorithms", "data", "records", "study", "cli"},
    "algorithms": {"launch", "training", "records", "study", "cli"},
    "records": {"launch", "training", "algorithms", "models", "data", "study", "cli"},
    "training": {"study", "cli"},
    "launch": {"training", "algorithms", "models", "study", "cli"},
    "study": {"launch", "training", "algorithms", "models", "cli"},
    "doctor": {"launch", "training", "algorithms", "models", "records", "study", "cli"},
}
TORCH_FREE = (
    "cli",
    "config",
    "plan",
    "study",
    "doctor",
    "completion",
    "submit",
    "errors.py",
    "paths.py",
    "randomness.py",
)


def files(part: str) -> list[Path]:
    path = ROOT / part
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def imported(path: Path, *, at_top_only: bool) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_top_only else list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_arrow_runs_back(package: str) -> None:
    for path in files(package):
        used = {name.split(".")[1] for name in imported(path, at_top_only=False) if name.startswith("launcher.")}
        assert not used & FORBIDDEN[package], path


@pytest.mark.parametrize("part", TORCH_FREE)
def test_the_command_lines_path_never_names_torch(part: str) -> None:
    for path in files(part):
        assert not {n for n in imported(path, at_top_only=True) if n.split(".")[0] in ("torch", "torchvision")}, path


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["ls"],
        ["show", "recipe=hot"],
        ["plan", "recipe=hot"],
        ["plan", "-h"],
        ["completion", "--line", "train rec"],
    ],
)
def test_quick_verbs_import_no_torch(words: list[str]) -> None:
    code = (
        "import sys; from launcher.cli.main import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as stop: code = stop.code\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
