"""How many processes a run is planned for."""

from __future__ import annotations

import pytest

from launcher.config.compose import compose
from launcher.plan.plan import planned_processes


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (["recipe=mild"], 8),
        (["recipe=mild", "launch.nnodes=2"], 16),
        (["recipe=mild", "launch.nnodes=2", "launch.nproc=4"], 8),
        (["recipe=mild", "launch=cpu"], 1),
        (["recipe=mild", "launch=cpu", "launch.nnodes=3"], 3),
    ],
)
def test_all_machines_count(words: list[str], processes: int) -> None:
    assert planned_processes(compose(words).config) == processes
