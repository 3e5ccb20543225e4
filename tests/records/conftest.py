import io
from pathlib import Path

import pytest
from rich.console import Console

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.records.run_folder import RunFolder, create
from launcher.records.summary import summary_table

CONFIG = compose(["launch=cpu"]).config


def summary(folder: RunFolder, config: RunConfig = CONFIG) -> str:
    screen = io.StringIO()
    Console(file=screen, width=120).print(summary_table(folder, config))
    return screen.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create(tmp_path, "run", unique=False)
