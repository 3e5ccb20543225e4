"""The table of machines that wait for their loader is what `train plan` predicts today."""

from pathlib import Path

import pytest

from benchmarks.loader_share import LOADERS, cell, offers, share

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "prediction.md"


def test_the_row_of_a_machine_is_on_the_page() -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith("| p5_48xlarge | 8x H100 80GB |")]
    of_loaders = [offers("mild", words, "p5_48xlarge")["p5_48xlarge"] for words in LOADERS.values()]
    writes = offers("mild", [], "p5_48xlarge")["p5_48xlarge"]["writing_minutes"] > 0
    assert row.split(" | ")[2] == cell(of_loaders, writes=writes)


def test_a_share_is_of_the_seconds() -> None:
    phases = [{"steps": 10, "seconds": 0.3, "bound": "loader"}, {"steps": 30, "seconds": 0.2, "bound": "memory"}]
    assert share({"phases": phases}) == pytest.approx(100 / 3)
