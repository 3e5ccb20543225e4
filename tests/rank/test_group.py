from __future__ import annotations

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from launcher.config.compose import compose
from launcher.rank.group import join_ranks
from launcher.rank.main import DEVICE


@pytest.mark.parametrize(("hang_timeout", "watch"), [("8", 600), ("600", 600), ("3600", 3600), ("null", 10**7)])
def test_collectives_wait_longer_than_the_watch(monkeypatch: pytest.MonkeyPatch, hang_timeout: str, watch: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, DEVICE: "cpu"}
    for name, value in {**names, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with join_ranks(compose([f"launch.hang_timeout={hang_timeout}"]).config):
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        assert backend.options._timeout > timedelta(seconds=watch + 60)
