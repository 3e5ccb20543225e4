"""Copies to a GPU, by what is asked of CUDA and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from launcher.data.batch import Overlap

GPU = torch.device("cuda", 0)


class Asked:
    """Stands for CUDA's streams, and for the tensors of a batch, and notes what is asked of them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.streams = 0
        self.side = False

    def stream(self, device: torch.device) -> Asked:
        self.streams += 1
        return self

    def wait_stream(self, stream: Asked) -> None:
        self.events.append("wait")

    @contextmanager
    def on_side(self, stream: Asked) -> Iterator[None]:
        self.side = True
        yield
        self.side = False

    def batch(self, number: int) -> Any:
        return Pictures(self, number), Pictures(None, number), np.array([number])


class Pictures:
    def __init__(self, asked: Asked | None, number: int):
        self.asked, self.number = asked, number

    def to(self, device: torch.device, non_blocking: bool) -> Pictures:
        assert non_blocking
        if self.asked is not None:
            assert self.asked.side
            self.asked.events.append(f"copy {self.number}")
        return self

    def record_stream(self, stream: Asked) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(torch.cuda, "Stream", made.stream)
    monkeypatch.setattr(torch.cuda, "stream", made.on_side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made)
    return made


def test_the_next_batch_is_on_its_way_before_a_step_begins(asked: Asked) -> None:
    for _, _, indices in Overlap(map(asked.batch, range(3)), GPU):
        asked.events.append(f"step {indices[0]}")
    steps = ["copy 0", "wait", "copy 1", "step 0", "wait", "copy 2", "step 1", "wait", "step 2"]
    assert asked.events == steps


def test_all_epochs_share_one_stream_and_its_memory(asked: Asked) -> None:
    for _ in range(3):
        assert len(list(Overlap(map(asked.batch, range(2)), torch.device("cuda", 1)))) == 2
    assert asked.streams == 1


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_the_time_waited_is_that_since_the_batch_before(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("launcher.data.batch.time.perf_counter", lambda: next(clock))
    batches = Overlap(map(asked.batch, range(3)), device)
    waited = [batches.waited for _ in batches]
    assert waited == ([2, 1, 1] if device == GPU else [1, 1, 1])
