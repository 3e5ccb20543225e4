"""Faults planted in the product must be seen by the runs on the simulated GPU: make gpu-simulated."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.images import write_images
from tests.simulated_gpu import job
from tests.simulated_gpu.edits import replaced
from tests.simulated_gpu.faults import FAULTS


@pytest.mark.parametrize("name", FAULTS)
def test_the_source_has_the_statements_that_a_fault_replaces_once(name: str) -> None:
    fault = FAULTS[name]
    spec = find_spec(fault.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    assert ast.unparse(replaced(source, fault.old, fault.new)) != ast.unparse(ast.parse(source))


@pytest.mark.sim
@job.needs_compiler
@pytest.mark.skipif(not job.EVERYTHING, reason="takes minutes: make gpu-simulated")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    edits = {fault.module: [(fault.old, fault.new)]}
    images = write_images(tmp_path / "images", {"train": 24, "val": 6})
    if fault.cases[0].ranks > 1:
        # note: a job of several ranks ends at the first problem
        with pytest.raises(AssertionError, match=r"'problems': \['\w+: \d+ of \d+ tensors of model differ"):
            job.train(fault.cases, fault.orders, images, edits=edits)
        return
    outcomes = job.train(fault.cases, fault.orders, images, edits=edits)
    assert any(outcome["problems"] for outcome in outcomes.values())
