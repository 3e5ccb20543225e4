import os
import signal

import pytest

from launcher.stopping import StopRequest, StopRequested, defers_stops, on_stop, raise_stop, stop_requests, stop_signals

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@pytest.mark.parametrize(("sent", "code"), [(number, 130 if number == signal.SIGINT else 143) for number in SIGNALS])
def test_a_signal_is_recorded_and_the_handlers_are_restored(sent: signal.Signals, code: int) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    request = StopRequest()
    with stop_signals(request.note):
        os.kill(os.getpid(), sent)
    assert (request.requested, request.exit_code) == (True, code)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_nohup_ignores_sighup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = StopRequest()
    try:
        with stop_signals(request.note):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not request.requested


@pytest.mark.parametrize("sent", SIGNALS)
def test_the_second_signal_reaches_the_previous_handler(sent: signal.Signals) -> None:
    received: list[int] = []
    before = signal.signal(sent, lambda number, frame: received.append(number))
    try:
        with stop_requests() as request:
            os.kill(os.getpid(), sent)
            assert (request.number, received) == (sent, [])
            os.kill(os.getpid(), sent)
        assert received == [sent]
    finally:
        signal.signal(sent, before)


def test_a_signal_ends_a_function_that_defers_stops_only_at_its_end() -> None:
    ends: list[str] = []

    @defers_stops()
    def change() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        ends.append("changed")

    before = on_stop(raise_stop)
    try:
        with pytest.raises(StopRequested) as stop:
            change()
        with pytest.raises(StopRequested):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (ends, stop.value.exit_code) == (["changed"], 143)
