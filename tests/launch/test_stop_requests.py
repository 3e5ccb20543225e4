from __future__ import annotations

import os
import signal

import pytest

from launcher.launch.stopping import StopRequest, stop_signals

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@pytest.mark.parametrize(("asked", "code"), [(number, 130 if number == signal.SIGINT else 143) for number in ASKING])
def test_a_signal_is_recorded_and_the_handlers_are_restored(asked: signal.Signals, code: int) -> None:
    before = [signal.getsignal(number) for number in ASKING]
    request = StopRequest()
    with stop_signals(request.note):
        os.kill(os.getpid(), asked)
    assert (request.requested, request.exit_code) == (True, code)
    assert [signal.getsignal(number) for number in ASKING] == before


def test_nohup_ignores_sighup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = StopRequest()
    try:
        with stop_signals(request.note):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not request.requested


@pytest.mark.parametrize("asked", ASKING)
def test_the_second_signal_reaches_the_previous_handler(asked: signal.Signals) -> None:
    came: list[int] = []
    before = signal.signal(asked, lambda number, frame: came.append(number))
    try:
        request = StopRequest()
        with stop_signals(request.note, once=True):
            os.kill(os.getpid(), asked)
            assert (request.number, came) == (asked, [])
            os.kill(os.getpid(), asked)
        assert came == [asked]
    finally:
        signal.signal(asked, before)
