from __future__ import annotations

import pytest
import torch

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.launch.devices import processes


@pytest.mark.parametrize(
    ("gpus", "device", "nproc", "expected"),
    [
        (8, "auto", "auto", 8),
        (8, "cuda", "auto", 8),
        (8, "auto", 3, 3),
        (8, "cpu", "auto", 1),
        (8, "cpu", 16, 16),
        (0, "auto", "auto", 1),
        (0, "auto", 2, 2),
    ],
)
def test_one_process_a_visible_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, nproc: object, expected: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert processes(compose([f"launch.device={device}", f"launch.nproc={nproc}"]).config.launch) == expected


@pytest.mark.parametrize(
    ("gpus", "device", "nproc", "message"),
    [
        (1, "auto", 2, "launch.nproc=2: only 1 GPU is visible; set launch.nproc=1, or launch.device=cpu"),
        (4, "cuda", 8, "launch.nproc=8: only 4 GPUs are visible; set launch.nproc=4, or launch.device=cpu"),
        (0, "cuda", "auto", "launch.device=cuda: no GPU is visible"),
        (0, "cuda", 2, "launch.device=cuda: no GPU is visible"),
    ],
)
def test_more_than_is_visible_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, nproc: object, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UserError) as caught:
        processes(compose([f"launch.device={device}", f"launch.nproc={nproc}"]).config.launch)
    assert str(caught.value).startswith(message)
