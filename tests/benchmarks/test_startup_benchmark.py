from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import startup


def test_each_command_is_timed_beside_hydra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(startup, "COMMANDS", {name: startup.COMMANDS[name] for name in (startup.PEER, "ls")})
    assert startup.main(["--repeats", "1", "--json", str(tmp_path / "out.json")]) == 0
    facts = json.loads((tmp_path / "out.json").read_text())
    assert set(facts) == {startup.PEER, "ls"}
    assert all(seconds > 0 for seconds in facts.values())
