"""A logger in a thread neither ends nor slows a run."""

import threading
import time

import pytest

from launcher.records.background import BackgroundSink
from launcher.records.metrics import Record
from tests.made_runs import training


class Logger:
    """A sink that stores steps; it may fail, or wait until it may go on."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: Exception | None = None
        self.closed = False

    def write(self, record: Record) -> None:
        self.goes_on.wait()
        if self.error:
            raise self.error
        self.steps.append(record.step)

    def close(self) -> None:
        self.closed = True


def test_records_arrive_in_order_before_the_end() -> None:
    logger = Logger()
    sink = BackgroundSink("mine", logger)
    for step in range(100):
        sink.write(training(step))
    sink.close()
    assert (logger.steps, logger.closed) == (list(range(100)), True)


def test_an_error_is_one_warning_and_later_records_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger()
    logger.error = ValueError("wrong\nvalue")
    sink = BackgroundSink("mine", logger)
    for step in range(3):
        sink.write(training(step))
    while not sink._queue.empty():
        time.sleep(0.01)
    logger.error = None
    sink.write(training(3))
    sink.close()
    assert logger.steps[-1:] == [3]
    expected = "warning: mine failed (wrong\\nvalue); training continues, and metrics.jsonl has all records\n"
    assert capsys.readouterr().out == expected


def test_a_logger_that_hangs_delays_neither_a_step_nor_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger()
    logger.goes_on.clear()
    sink = BackgroundSink("mine", logger, most=10, close_seconds=0.05)
    start = time.monotonic()
    for step in range(1000):
        sink.write(training(step))
    sink.close()
    assert time.monotonic() - start < 100
    assert "warning: mine is too slow, and some records are dropped" in capsys.readouterr().out
    logger.goes_on.set()
