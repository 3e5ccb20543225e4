"""The process that ranks are forks of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from launcher.launch.zygote import Zygote, ZygoteLost
from launcher.rank.main import done_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")


def test_it_has_no_threads_and_each_fork_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2]))))
    zygote = Zygote()
    words = ("rank_targets:tell_torchs_threads", str(tmp_path), str(os.getpid()), str(tmp_path))
    ranks = [zygote.fork(words, {**os.environ, "RANK": str(n), "OMP_NUM_THREADS": str(n)}) for n in (1, 3)]
    assert psutil.Process(zygote.pid).num_threads() == 1
    for rank in ranks:
        rank.wait(240)
        assert (rank.poll(), done_file(tmp_path, rank.pid).exists()) == (0, True)
    assert [(tmp_path / f"threads-{n}").read_text() for n in (1, 3)] == ["1", "3"]
    zygote.kill()
    with pytest.raises(ZygoteLost):
        zygote.fork(words, {})
    assert zygote.ended == -9
