"""Start jobs on the simulated device: one process a rank."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from launcher.rank.signs import DEVICE, INTERFACE, STORE
from tests.simulated_gpu.build import build, why_not
from tests.simulated_gpu.cases import Case

Outcomes = dict[str, dict[str, Any]]
ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(bool(why_not()), reason=f"the simulated GPU is compiled here: {why_not()}")
# The longer product: make gpu-simulated.
EVERYTHING = os.environ.get("GPU_SIMULATED") == "all"


def run(function: str, ranks: int = 1, edits: Mapping[str, Sequence[Any]] | None = None, **arguments: Any) -> Any:
    """Run a function of `jobs` on each rank, and return rank 0's result; a failure raises AssertionError."""
    build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job").write_text(json.dumps({"function": function, "arguments": arguments, "edits": edits or {}}))
        command = [sys.executable, "-m", "tests.simulated_gpu.worker", str(folder / "job"), str(folder / "result")]
        place = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "OMP_NUM_THREADS": 1}
        place |= {DEVICE: "sim", STORE: folder / "store", INTERFACE: "lo"}
        logs = [(folder / f"{rank}.log").open("w+") for rank in range(ranks)]
        processes = []
        for rank, log in enumerate(logs):
            words = {name: str(value) for name, value in {**place, "RANK": rank, "LOCAL_RANK": rank}.items()}
            environment = {**os.environ, **words}
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
        codes = _ended(processes)
        for log in logs:
            log.seek(0)
        texts = [log.read() for log in logs]
        assert not any(codes), "\n".join(text for code, text in zip(codes, texts, strict=True) if code)
        return json.loads((folder / "result").read_text())


def _ended(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for processes; end the others soon after one fails, since they would wait for it."""
    codes: list[int | None] = [None]
    try:
        while None in codes and not any(codes):
            time.sleep(0.1)
            codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.wait() if code is None else code for process, code in zip(processes, codes, strict=True)]


def train(cases: Sequence[Case], orders: Sequence[str], images: Path, **more: Any) -> Outcomes:
    """Train cases of one number of ranks."""
    (ranks,) = {case.ranks for case in cases}
    outcomes: Outcomes = run(
        "train", ranks, cases=[asdict(case) for case in cases], orders=orders, images=str(images), **more
    )
    return outcomes


def write_text(folder: Path) -> None:
    """Write a text in the splits train and val."""
    folder.mkdir()
    for split, count in {"train": 200, "val": 50}.items():
        lines = ("tree river stone cloud bird"[number % 9 :] for number in range(count))
        (folder / f"{split}.txt").write_text("\n".join(lines))
