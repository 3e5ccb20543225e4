"""The device of the GPU tests; `scripts/gpu.sh --dry` runs them small on the CPU."""

import os
from pathlib import Path

import pytest
import torch

from launcher.rank.group import use_device
from tests.networks import use_tiny
from tests.runs import Cold

DRY = os.environ.get("GPU_TESTS") == "dry"


@pytest.fixture(scope="session")
def device() -> torch.device:
    if torch.cuda.is_available() and not DRY:
        return use_device("cuda", 0)
    if not DRY:
        pytest.skip("no GPU; scripts/gpu.sh --dry runs this on the CPU")
    use_tiny()
    return torch.device("cpu")


@pytest.fixture
def train(tmp_path: Path) -> Cold:
    root = str(Path(__file__).parents[2])
    cores = {"OMP_NUM_THREADS": "2"}
    return Cold(tmp_path, {**os.environ, **cores, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"})
