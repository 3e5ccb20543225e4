"""Two nodes, as network namespaces, with two ranks each: one is disconnected and rejoins, or both share a disk."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from launcher.config.tasks import TaskConfig
from launcher.records.run_folder import RunFolder
from launcher.training import checkpoint
from tests.forked import Command
from tests.other_machine import be_host
from tests.runs import SHORT, Train, slow_down, steps_done, wait_for

pytestmark = pytest.mark.system

# CLONE_NEWNET of the kernel
_NETWORK = 0x40000000
HOSTS = {"first": "10.231.7.1", "second": "10.231.7.2"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Connect two namespaces by a pair of virtual interfaces, and return their names."""
    if shutil.which("ip") is None or os.getuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    names = {host: f"train-{host}-{os.getpid()}" for host in HOSTS}
    try:
        for name in names.values():
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be created here: {error.stderr.decode().strip()}")
    try:
        link = f"link add tr0 netns {names['first']} type veth peer name tr0 netns {names['second']}"
        ip(*link.split())
        for host, name in names.items():
            ip("-n", name, "addr", "add", f"{HOSTS[host]}/24", "dev", "tr0")
            ip("-n", name, "link", "set", "tr0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def enter(namespace: str, host: str) -> None:
    with Path("/run/netns", namespace).open() as there:
        assert ctypes.CDLL(None).setns(there.fileno(), _NETWORK) == 0
    be_host(host)


def record_who_draws() -> None:
    from launcher.records import learning_curve

    learning_curve.draw_curve = _record_who_draws


def _record_who_draws(folder: RunFolder, task: TaskConfig, title: str) -> Path:
    with (folder.path / "drawn").open("a") as file:
        file.write(f"{socket.gethostname()}\n")
    return folder.curve


def start(host: str, namespace: str, folder: Path, *words: str, shared: bool = False) -> Command:
    """Start the command on one host; run folders are visible to the other host if the disk is shared."""
    here = folder if shared else folder / host
    here.mkdir(exist_ok=True)
    several = ["run_name=both", "launch.nnodes=2", f"launch.rdzv={HOSTS['first']}:29411", *words]
    train = Train(here, around=(partial(enter, namespace, host),))
    train.before += (slow_down, record_who_draws)
    with (folder / f"{host}.txt").open("a") as log:
        return train.start(*SHORT, *several, stdout=log, stderr=log)


def test_a_lost_node_ends_the_others_with_one_line_each(hosts: dict[str, str], tmp_path: Path) -> None:
    words = ["epochs=6", "launch.hang_timeout=10", "launch.rdzv_timeout=240"]
    processes = {host: start(host, hosts[host], tmp_path, *words) for host in hosts}
    try:
        # note: the node that serves the rendezvous has rank 0, which writes the records
        wait_for(lambda: steps_done(tmp_path / "first" / "runs" / "both") >= 9)
        ip("-n", hosts["second"], "link", "set", "tr0", "down")
        for host, process in processes.items():
            output = tmp_path / f"{host}.txt"
            assert process.wait(timeout=480) == 1, output.read_text()
            assert output.read_text().count("error: ") == 1, output.read_text()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert checkpoint.newest_valid(tmp_path / "first" / "runs" / "both" / "checkpoints") is not None


def test_a_node_that_does_not_connect_is_reported_after_the_timeout(hosts: dict[str, str], tmp_path: Path) -> None:
    start_time = time.monotonic()
    process = start("first", hosts["first"], tmp_path, "launch.rdzv_timeout=5")
    assert process.wait(timeout=240) == 1
    assert time.monotonic() - start_time >= 5
    assert "launch.rdzv=10.231.7.1:29411: not all 2 nodes connected within 5 s" in (tmp_path / "first.txt").read_text()


def test_one_of_several_nodes_with_a_shared_run_folder_writes_the_files_of_the_run(
    hosts: dict[str, str], tmp_path: Path
) -> None:
    processes = {host: start(host, hosts[host], tmp_path, "epochs=2", shared=True) for host in hosts}
    for host, process in processes.items():
        assert process.wait(timeout=480) == 0, (tmp_path / f"{host}.txt").read_text()
    run = tmp_path / "runs" / "both"
    host = json.loads((run / "environment.json").read_text())["host"]
    assert (run / "drawn").read_text().split() == [host]
    shown = {name for name in hosts if "epoch 2/2" in (tmp_path / f"{name}.txt").read_text()}
    summarized = {name for name in hosts if "training time" in (tmp_path / f"{name}.txt").read_text()}
    assert shown == summarized == {host}
    assert len(json.loads((run / "dataset.json").read_text())["identities"]) == 1
    assert not list(run.rglob(".*.tmp"))
