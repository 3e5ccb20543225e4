"""Leases, where a file system has no locks."""

import os
import time
from pathlib import Path

import pytest

from launcher.files import locks


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_lease_is_as_old_as_the_file_system_says(hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, now = tmp_path / ".lock.lease", time.time()
    lease.touch()
    monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)
    assert locks.is_leased(tmp_path)
    os.utime(lease, (now - 60, now - 60))
    assert not locks.is_leased(tmp_path)
