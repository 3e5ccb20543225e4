"""The simulated device shows each hazard that its runs are to find, and fills a limited memory."""

import pytest

from tests.simulated_gpu import job
from tests.simulated_gpu.step_table import HEADS

pytestmark = [job.needs_compiler, pytest.mark.sim]


def test_each_hazard_is_shown() -> None:
    results: dict[str, bool] = job.run("hazards")
    assert len(results) == 14
    assert [name for name, shown in results.items() if not shown] == []


@pytest.mark.parametrize(("graphs", "limit"), [("off", 1), ("require", 2)])
def test_a_batch_fills_a_limited_memory(graphs: str, limit: int) -> None:
    words = ["recipe=mild", "dataset.native_size=32", "precision=fp32", f"cuda_graphs={graphs}"]
    found = job.run("largest_batch", words=words, limit=limit)
    assert found["unlimited"] == 16
    assert 2 <= found["limited"] <= 8


def test_a_step_is_counted_beside_the_plain_loop() -> None:
    plain, ours, captured, *_ = (dict(zip(HEADS, row, strict=True)) for row in job.run("count_steps", choices=["none"]))
    assert [row["step"] for row in (plain, ours, captured)] == ["plain PyTorch loop", "none", "none, captured"]
    assert plain["bytes to the device"] == 0 < ours["bytes to the device"] == captured["bytes to the device"] <= 64
    assert plain["waits"] == ours["waits"] == captured["waits"] == 0
    assert captured["launches"] < plain["launches"] < plain["host calls"]
