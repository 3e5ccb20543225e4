from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchvision.models import resnet18

from launcher.rank.peers import broadcast_first


def test_buffers_cross_ranks_in_one_message_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = resnet18(), resnet18()
    first(torch.randn(4, 3, 32, 32))
    sent = {
        dtype: torch.cat([b.flatten() for b in first.buffers() if b.dtype == dtype])
        for dtype in (torch.float32, torch.int64)
    }
    messages: list[torch.dtype] = []

    def receive(message: Tensor, src: int) -> None:
        messages.append(message.dtype)
        message.copy_(sent[message.dtype])

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "broadcast", receive)
    broadcast_first(second.buffers())
    assert sorted(map(str, messages)) == ["torch.float32", "torch.int64"]
    assert all(map(torch.equal, first.buffers(), second.buffers()))
