from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs import SHORT, Train, slow_down


@pytest.fixture
def train(train: Train) -> Train:
    """Run tiny networks whose steps and checkpoints are slow enough to be interrupted."""
    return replace(train, before=(*train.before, slow_down))


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of SHORT."""
    train = Train(tmp_path_factory.mktemp("uninterrupted"))
    train(*SHORT, "run_name=run")
    return train.folder / "runs" / "run"
