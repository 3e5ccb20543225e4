"""The lock file has wheels for every supported Python and processor, and a short run passes on those installed here."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.prefix) / "bin" / "uv"


each_version = pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
SHORT = [
    *("recipe=mild", "model=resnet18", "dataset=shapes", "dataset.train_samples=32", "dataset.val_samples=16"),
    *("dataset.native_size=32", "batch_size=16", "launch=cpu", "launch.nproc=2", "dataloader.workers=1", "run_name=r"),
    "schedule.warmup=1ba",
]


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@each_version
def test_every_package_but_one_has_a_wheel(version: str, machine: str, tmp_path: Path) -> None:
    # note: antlr4 has no wheel at all, but is Python alone
    text = re.sub(r"^antlr4(.*\\\n)*.*\n", "", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    (tmp_path / "lock").write_text(text)
    words = ["pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--no-build", "--python-version", version]
    words += ["--python-platform", f"{machine}-manylinux_2_28", "--target", str(tmp_path / "site")]
    command = [UV, *words, "--cache-dir", str(tmp_path / "cache"), "--requirement", str(tmp_path / "lock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "error sending request" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith(" + ") for line in done.stderr.splitlines()) > 100


@pytest.mark.skipif(os.environ.get("TRAIN_TEST_PYTHONS") != "1", reason="6 GB and minutes each: TRAIN_TEST_PYTHONS=1")
@pytest.mark.timeout(1800)
@each_version
def test_set_up_and_a_short_run_pass(version: str, tmp_path: Path) -> None:
    found = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"),
        *filter(None, [shutil.which(f"python{version}")]),
    ]
    if not found:
        pytest.skip(f"python{version} is not installed")
    clone = tmp_path / "clone"
    environment = {**os.environ, "PYTHON": str(found[0]), "OMP_WAIT_POLICY": "passive", "PYTHONPATH": ""}
    try:
        for command in (
            ["git", "clone", "--quiet", str(ROOT), str(clone)],
            ["make", "-C", str(clone), "setup"],
            [str(clone / ".venv" / "bin" / "train"), *SHORT, "epochs=1"],
            [str(clone / ".venv" / "bin" / "train"), "resume", "runs/r", "epochs=2"],
        ):
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        facts = json.loads((tmp_path / "runs" / "r" / "environment.json").read_text())
        assert facts["python"].startswith(version)
        assert "Warning" not in done.stderr
    finally:
        shutil.rmtree(clone, ignore_errors=True)
