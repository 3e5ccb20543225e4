"""A step that runs out of memory, and what its error suggests."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from launcher.errors import UserError
from launcher.training import worker
from launcher.training.worker import explain_out_of_memory
from tests.trainers import build


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "device_batch_size=null: 8 samples of 16 px at a time do not fit into GPU memory "
             "(Tried to allocate 2.00 GiB); device_batch_size=4 keeps the global batch; "
             "model.checkpointing=on saves memory but takes longer"),
        (["device_batch_size=1"], "(Tried to allocate 2.00 GiB); use a smaller model or size; model."),
    ],
)  # fmt: skip
def test_a_step_that_does_not_fit_suggests_half_the_batch(words: list[str], message: str) -> None:
    def too_much(*_: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 20 GiB.")

    with pytest.raises(UserError) as raised, explain_out_of_memory(build("recipe=baseline", *words).plan):
        too_much()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_counted_step_is_stated_and_bounds_what_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "step_bytes", lambda plan: 60 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(total_memory=20 * 10**9))
    with pytest.raises(UserError) as raised, explain_out_of_memory(build("recipe=baseline").plan):
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 20 GiB.")
    assert "; the counted step takes 60.0 GB of 20.0 GB; device_batch_size=2 keeps" in str(raised.value)


def test_other_errors_and_those_of_an_evaluation_do_not_change() -> None:
    def evaluate() -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")

    def fail() -> None:
        raise RuntimeError("another")

    plan = build("recipe=baseline").plan
    for function, error in ((evaluate, torch.OutOfMemoryError), (fail, RuntimeError)):
        with pytest.raises(error), explain_out_of_memory(plan):
            function()
