from __future__ import annotations

import os
import signal

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from launcher.launch.stopping import StopRequest, stop_requests
from launcher.launch.watch import RankWatch

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@pytest.mark.parametrize(("asked", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)])
def test_a_stop_before_any_rank_has_started_ends_the_launch(asked: signal.Signals, code: int) -> None:
    before = [signal.getsignal(number) for number in ASKING]
    request, said = StopRequest(), list[str]()
    with pytest.raises(SignalException), stop_requests(request, RankWatch(2), said.append):
        os.kill(os.getpid(), asked)
    assert (request.asked, request.exit_code, said) == (True, code, [])
    assert [signal.getsignal(number) for number in ASKING] == before


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = StopRequest()
    try:
        with stop_requests(request, RankWatch(2), print):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not request.asked
