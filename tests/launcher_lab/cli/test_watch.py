"""`train watch`: TensorBoard of some runs, read by an HTTP client, and the scalars of a run by TensorBoard's reader."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launcher.loggers.tensorboard import TensorBoardSink
from tests.commands import refused
from tests.made_runs import MakeRun, training
from tests.runs import Cold


@pytest.fixture
def folders(make_run: MakeRun) -> list[Path]:
    """Two runs with event files, of two ranks, and one without."""
    runs = [make_run(name, [0.5], [60.0]) for name in ("first", "second, a:b", "third")]
    for number, run in enumerate(runs[:2]):
        sink = TensorBoardSink(run / "tensorboard")
        sink.write(replace(training(12, 2.5 + number), data_wait_seconds=0.1, rank_wait_seconds=[0.1, 0.3]))
        sink.close()
    return runs


@pytest.fixture
def watched(cold: Cold, folders: list[Path]) -> Iterator[tuple[Any, dict[str, Any]]]:
    process = cold.start("watch", *map(str, folders[:2]), "--json")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "}\n")
    yield process, json.loads("".join(lines) + "}")
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def listening(port: int) -> set[str]:
    """Return the addresses on which a port accepts connections, by the kernel's tables."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    addresses = [row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
    return {socket.inet_ntoa(bytes.fromhex(one)[::-1]) if len(one) == 8 else one for one in addresses}


def test_the_waits_for_data_are_scalars_of_each_run(folders: list[Path]) -> None:
    events = EventAccumulator(str(folders[0] / "tensorboard"))
    events.Reload()
    names = ("train/data_wait_seconds", "train/rank_wait_seconds/0", "train/rank_wait_seconds/1", "train/loss")
    values = [[(event.step, event.value) for event in events.Scalars(name)] for name in names]
    assert values == [[(12, pytest.approx(value))] for value in (0.1, 0.1, 0.3, 2.5)]


@pytest.mark.slow
def test_tensorboard_has_these_runs_alone_on_a_free_port_of_the_loopback(
    cold: Cold, folders: list[Path], watched: tuple[Any, dict[str, Any]]
) -> None:
    process, document = watched
    assert document["runs"] == [str(folder) for folder in folders[:2]]
    host, port = document["address"].rstrip("/").removeprefix("http://").split(":")
    assert host == "127.0.0.1"
    client = http.client.HTTPConnection(host, int(port), timeout=60)
    client.request("GET", "/data/plugin/scalars/tags")
    tags = json.loads(client.getresponse().read())
    assert tags.keys() == {"first", "second, a:b"}
    assert "train/data_wait_seconds" in tags["first"]
    assert listening(int(port)) == {"127.0.0.1"}
    # note: a second one finds the port taken
    second = cold.start("watch", str(folders[0]))
    assert second.stdout is not None
    line = second.stdout.readline()
    assert line.startswith("http://127.0.0.1:")
    assert f":{port}/" not in line
    for one in (second, process):
        one.send_signal(signal.SIGINT)
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 130
        assert len(errors.splitlines()) == 1, errors


def test_a_run_without_event_files_is_one_line(folders: list[Path], tmp_path: Path) -> None:
    line = refused("watch", *map(str, folders))
    end = "third has no files of TensorBoard; wait for the first step, or train with logger=tensorboard\n"
    assert line == f"error: {os.path.realpath(folders[2].parent)}/{end}"
    assert "missing" in refused("watch", str(tmp_path / "missing"))
