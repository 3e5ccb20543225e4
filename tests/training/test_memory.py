from __future__ import annotations

from typing import Any

import pytest
import torch

from launcher.errors import UserError
from launcher.training import memory
from tests.trainers import build

GB = 10**9


@pytest.mark.parametrize(
    ("available", "said"),
    [
        (20, "device_batch_size=null: 8 images of 16 px at a time do not fit (Tried to allocate 2.00 GiB); "
             "about 5 would: device_batch_size=4 keeps the global batch; "
             "model.checkpointing=on takes less memory and more time"),
        (3, "nor do fewer; a smaller model or image.train_size may"),
    ],
)  # fmt: skip
def test_a_step_that_does_not_fit_names_the_batch_that_would(
    available: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build("recipe=baseline", "schedule.warmup=0ba")
    # note: the stand-in of a GPU: 2 GB for the weights, 3 for each picture
    monkeypatch.setattr(memory, "peak_bytes", lambda _, images: (2 + 3 * images) * GB)
    monkeypatch.setattr(memory, "memory_bytes", lambda _: available * GB)

    def too_much(*_: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 20 GiB.")

    with pytest.raises(UserError) as told, memory.explaining_memory(run):
        too_much()
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_other_errors_and_those_of_an_evaluation_pass() -> None:
    def evaluate() -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")

    def fail() -> None:
        raise RuntimeError("another")

    run = build("recipe=baseline", "schedule.warmup=0ba")
    for function, error in ((evaluate, torch.OutOfMemoryError), (fail, RuntimeError)):
        with pytest.raises(error), memory.explaining_memory(run):
            function()
