"""The arrows between the packages, and what the command line's path may not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.resolved import write
from launcher.records.folder import RunFolder

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
    "launch/start.py",
    "launch/measuring.py",
    "console.py",
    "errors.py",
    "probe.py",
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
        ["curve", "-h"],
        ["compare", "-h"],
        ["report", "-h"],
        ["completion", "--line", "train rec"],
    ],
)
def test_quick_verbs_import_no_torch(words: list[str]) -> None:
    done = without_torch(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset=imagenet", "dataset.path=/nowhere"], "dataset.path=/nowhere: is no folder"),
        (["launch=cpu", "batch_size=5000"], "batch_size=5000"),
        (["estimate", "dataset=imagenet", "dataset.path=/nowhere"], "dataset.path=/nowhere: is no folder"),
        (["diagnose", "launch=cpu", "batch_size=5000"], "batch_size=5000"),
        (["ablate", "dataset=imagenet", "dataset.path=/nowhere"], "dataset.path=/nowhere: is no folder"),
        (["resume", "RUN", "nope=1"], "nope=1"),
        (["resume", "RUN", "launch.nnodes=0"], "launch.nnodes=0"),
        (["eval", "RUN"], "has saved no checkpoint yet"),
        (["export", "RUN"], "has saved no checkpoint yet"),
        (["replay", "RUN", "step=99999"], "step=99999"),
    ],
)
def test_mistakes_are_answered_before_torch_is_imported(words: list[str], said: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write(compose(["launch=cpu"]).config, run.config)
    done = without_torch(*(str(tmp_path) if word == "RUN" else word for word in words))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def without_torch(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that must not have imported what is slow by its end."""
    code = (
        "import sys; from launcher.cli.main import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as stop: code = stop.code\n"
        "assert not {'torch', 'matplotlib', 'scipy'} & set(sys.modules); sys.exit(code)"
    )
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
