"""The simulated device shows each hazard that its runs are to find, and fills a limited memory."""

from functools import cache

import pytest

from tests.simulated_gpu import job

pytestmark = job.needs_compiler
HAZARDS = (
    *("it trains to the bits of the CPU", "a missing wait_stream", "a missing record_stream"),
    *("pinned memory overwritten early", "pinned memory freed early", "a copy read before its event", "captures"),
    *("a branch of a graph joined late", "replays", "launches", "fused optimizers", "memory", "other devices", "waits"),
)


@cache
def shown() -> dict[str, bool]:
    results: dict[str, bool] = job.run("hazards")
    return results


@pytest.mark.parametrize("name", HAZARDS)
def test_a_hazard_is_shown(name: str) -> None:
    assert shown().keys() == set(HAZARDS)
    assert shown()[name]


@pytest.mark.parametrize(("graphs", "limit"), [("off", 1), ("require", 2)])
def test_a_batch_fills_a_limited_memory(graphs: str, limit: int) -> None:
    words = ["recipe=mild", "dataset.native_size=32", "precision=fp32", f"cuda_graphs={graphs}"]
    found = job.run("largest_batch", words=words, limit=limit)
    assert found["unlimited"] == 16
    assert 2 <= found["limited"] <= 8
