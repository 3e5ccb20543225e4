"""`make gpu` at toy size on a CPU, to show that it still runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked import python

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu.sh"
# `python -m MODULE WORDS`, `-c CODE WORDS` or `- WORDS`, forked.
FORKING = f"""#!{sys.executable}
import os, sys
from pathlib import Path
from tests.forked import Command
first, *words = sys.argv[1:]
words = {{"-m": words, "-c": ["-c", *words]}}.get(first) or ["-c", sys.stdin.read(), *words]
sys.exit(Command(words, Path.cwd(), os.environ, sys.stdout, sys.stderr, stdin=sys.stdin).wait())
"""


def run(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "python"
    script.write_text(FORKING)
    script.chmod(0o755)
    # note: starts the process that the others fork from
    python("pass", folder=tmp_path)
    variables = {
        "PYTEST_XDIST_TESTRUNUID": str(os.getpid()),
        **os.environ,
        "PYTHON": str(script),
        "PYTHONPATH": str(ROOT),
    }
    command = [str(SCRIPT), *words]
    return subprocess.run(command, env={**variables, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.system
def test_the_gpu_script_runs_dry(tmp_path: Path) -> None:
    done = run(tmp_path, "--dry", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())
    parts = ["doctor", "tests-eager", "step-eager", "tests-captured", "step-graphs", "tests-memory"]
    parts += ["estimate-1", "algorithms", "tests-compiled", "training"]
    assert [part["part"] for part in results["parts"]] == parts
    assert {part["exit_code"] for part in results["parts"]} == {0}
    assert {"plain PyTorch loop", "recipe mild"} <= {one["contender"] for one in results["step-eager"]["results"]}
    assert "skipped recipe mild, captured: cuda_graphs=require: cannot capture steps" in done.stdout
    assert results["estimate-1"]["samples_per_second"] > 0
    assert (results["device"], results["smi"]) == ("cpu", [])
    assert results["algorithms"]["ratios"].keys() == {"blurpool", "sam"}
    assert "ratio to plain PyTorch" in (tmp_path / "gpu.txt").read_text()
    assert list((tmp_path / "short" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_without_a_gpu_the_script_ends_with_a_one_line_error(tmp_path: Path) -> None:
    done = run(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu.sh: torch detects no GPU; use --dry for a small run on the CPU\n"


@pytest.mark.parametrize("fault", ["sleep 300", "echo skipped recipe mild: it failed", "(sleep 300 & exit 3)"])
def test_a_part_that_fails_or_hangs_is_loud_and_does_not_stop_the_next(fault: str, tmp_path: Path) -> None:
    functions = re.search(r"^failed=.*?^}\n.*?^}\n", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    assert functions
    lines = [
        f"out={tmp_path} dry= python={sys.executable}",
        functions[0],
        f"part bad 1 sh -c '{fault}'",
        "part good 9 true",
    ]
    start = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", "\n".join([*lines, 'echo "failed:$failed"'])], capture_output=True, text=True, check=True
    )
    assert time.monotonic() - start < 200
    assert "failed: bad\n" in done.stdout
    codes = {part["part"]: part["exit_code"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]}
    assert codes["good"] == 0 < codes["bad"]
    assert (tmp_path / "gpu.txt").read_text().startswith("== bad\n")


def test_shellcheck_accepts_the_script() -> None:
    checker = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([checker, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
