"""A run as a rank opens it."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from launcher.config.compose import compose
from launcher.training import opened as module


@pytest.mark.parametrize(
    ("words", "starts"),
    [([], True), (["dataloader.workers=0"], False), (["dataloader=ffcv"], False), (["dataloader=synthetic"], False)],
)
def test_the_server_of_workers_starts_before_the_ranks_join(
    words: list[str], starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, events = compose(["dataset=shapes", *words]).config, list[str]()
    ranks = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr(module, "read", lambda path: config)
    monkeypatch.setattr(module, "start_server", lambda: events.append("server"))
    monkeypatch.setattr(module, "join_ranks", lambda config: events.append("ranks") or nullcontext(ranks))
    with module.opened(Path("run")) as run:
        assert run.config is config
    assert events == ["server"] * starts + ["ranks"]
