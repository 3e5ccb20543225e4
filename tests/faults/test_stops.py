"""Stop signals while a command waits for a server that sends no data."""

import signal
import socket
import time

import pytest

from tests.runs import Train

pytestmark = pytest.mark.system


def test_a_stop_signal_ends_a_command_that_waits_for_a_server(train: Train) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(240)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/images.tar"
        process = train.start("doctor", "dataset=image_folder", f"dataset.path={url}")
        connection, _ = server.accept()
        with connection:
            time.sleep(0.5)
            start_time = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=240)
            assert time.monotonic() - start_time < 10
    assert process.returncode == 143, errors
    assert errors.splitlines()[-1] == "stopped by SIGTERM"
