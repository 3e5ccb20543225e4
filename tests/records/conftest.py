from pathlib import Path

import pytest

from launcher.records.run_folder import RunFolder, create


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create(tmp_path, "run", unique=False)
