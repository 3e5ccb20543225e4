from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import SHORT, Train


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, object]:
    """What an uninterrupted run of SHORT leaves: its newest state."""
    made = Train.at(tmp_path_factory.mktemp("whole"), cache)
    made(*SHORT, "run_name=whole")
    return made.state(made.folder / "runs" / "whole")
