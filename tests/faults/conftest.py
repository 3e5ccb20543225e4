from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import SHORT, Train


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of SHORT."""
    made = Train(tmp_path_factory.mktemp("whole"))
    made(*SHORT, "run_name=whole")
    return made.folder / "runs" / "whole"
