from __future__ import annotations

import time

from launcher.data.images import Reading


def test_only_what_is_read_for_too_long_has_stalled() -> None:
    reading = Reading(2)
    assert reading.stalled(0) is None
    with reading.image(0, reader=1):
        time.sleep(0.02)
        assert reading.stalled(0.01) == 0
        assert reading.stalled(60) is None
        with reading.image(7):
            assert reading.stalled(0.01) == 0
    assert reading.stalled(0) is None


def test_a_picture_that_cannot_be_read_is_not_read_any_more() -> None:
    reading = Reading(1)
    try:
        with reading.image(5):
            raise OSError
    except OSError:
        assert reading.stalled(-1) is None
