"""Copies to a GPU, by the order of the calls to CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from launcher.data.batch import Overlap

GPU = torch.device("cuda", 0)


class Recorder:
    """Replace CUDA's streams and a batch's tensors, and record the calls to them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.streams = 0
        self.on_side_stream = False

    def stream(self, device: torch.device) -> Recorder:
        self.streams += 1
        return self

    def wait_stream(self, stream: Recorder) -> None:
        self.events.append("wait")

    @contextmanager
    def on_side(self, stream: Recorder) -> Iterator[None]:
        self.on_side_stream = True
        yield
        self.on_side_stream = False

    def batch(self, number: int) -> Any:
        return FakeImages(self, number), FakeImages(None, number), np.array([number])


class FakeImages:
    def __init__(self, recorder: Recorder | None, number: int):
        self.recorder, self.number = recorder, number

    def to(self, device: torch.device, non_blocking: bool) -> FakeImages:
        assert non_blocking
        if self.recorder is not None:
            assert self.recorder.on_side_stream
            self.recorder.events.append(f"copy {self.number}")
        return self

    def record_stream(self, stream: Recorder) -> None:
        pass


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    instance = Recorder()
    monkeypatch.setattr(torch.cuda, "Stream", instance.stream)
    monkeypatch.setattr(torch.cuda, "stream", instance.on_side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: instance)
    return instance


def test_the_next_batch_is_copied_before_a_step_starts(recorder: Recorder) -> None:
    for _, _, indices in Overlap(map(recorder.batch, range(3)), GPU):
        recorder.events.append(f"step {indices[0]}")
    steps = ["copy 0", "wait", "copy 1", "step 0", "wait", "copy 2", "step 1", "wait", "step 2"]
    assert recorder.events == steps


def test_all_epochs_share_one_stream_and_its_memory(recorder: Recorder) -> None:
    for _ in range(3):
        assert len(list(Overlap(map(recorder.batch, range(2)), torch.device("cuda", 1)))) == 2
    assert recorder.streams == 1


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_the_time_waited_counts_since_the_previous_batch(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("launcher.data.batch.time.perf_counter", lambda: next(clock))
    batches = Overlap(map(recorder.batch, range(3)), device)
    waited = [batches.waited for _ in batches]
    assert waited == ([2, 1, 1] if device == GPU else [1, 1, 1])
