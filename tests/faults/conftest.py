from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs import SHORT, Train, slow_down


@pytest.fixture
def train(train: Train) -> Train:
    """With time to meet a run in a step, or in a save, and little work for those that are waited for."""
    return replace(train, before=(*train.before, slow_down))


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of SHORT."""
    made = Train(tmp_path_factory.mktemp("whole"))
    made(*SHORT, "run_name=whole")
    return made.folder / "runs" / "whole"
