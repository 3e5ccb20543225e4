"""`stop.minutes` with captured steps: they are measured, fix the epochs, and a resume has the bits of a whole run."""

import pytest

from tests.simulated_gpu import job

pytestmark = [job.needs_compiler, pytest.mark.sim]


def test_captured_steps_fix_the_epochs_and_a_killed_run_has_the_bits_of_a_whole_one() -> None:
    result = job.run("resume_in_time", 2, words=["algorithms=[ema,sam,progressive_resizing]"])
    assert result["replayed"] > 0.5
    assert result["captures"] > 0
    assert result["epochs"] == [3, 3]
    assert result["problems"] == []
