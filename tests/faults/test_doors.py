"""Sockets on which the processes of a run listen, and what a stranger who can reach them achieves."""

import ipaddress
import os
import pickle
import socket
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from tests.runs import SMALL, Train, processes_of, steps_done, wait_for

pytestmark = pytest.mark.system
# where the rendezvous keeps its state, and where torch's keeps it, in base64
_OF_TORCH = "torch.rendezvous.train"


class Touch:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def own_address() -> str:
    """Return an address by which other machines reach this one."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not ipaddress.ip_address(one.address).is_loopback:
                return one.address
    pytest.skip("this machine has no address but loopback")


def listening(run: Path) -> set[tuple[str, int]]:
    """Return addresses and ports of all sockets of a run that others may send to."""
    sockets = set()
    for process in processes_of(run):
        with suppress(psutil.Error):
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM:
                    sockets.add((one.laddr.ip, one.laddr.port))
    return sockets


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.skeleton), 2])
def test_a_run_on_one_node_listens_on_loopback_and_one_process_on_nothing(train: Train, ranks: int) -> None:
    process = train.start(*SMALL, "run_name=run", f"launch.nproc={ranks}")
    run, seen = train.folder / "runs" / "run", set()
    while process.poll() is None:
        seen |= listening(run)
    assert process.returncode == 0, process.communicate()
    assert (run / "checkpoints" / "best.pt").exists()
    assert {address for address, _ in seen} == ({"127.0.0.1"} if ranks > 1 else set())


def test_a_run_folder_contains_no_variable_of_the_environment(train: Train) -> None:
    secret = "open" + "sesame"
    environment = {**train.environment, "AWS_SECRET_ACCESS_KEY": secret, "WANDB_API_KEY": secret}
    process = replace(train, environment=environment).start(*SMALL, "run_name=run")
    assert process.wait() == 0, process.communicate()
    files = [path for path in (train.folder / "runs" / "run").rglob("*") if path.is_file()]
    assert "environment.json" in [path.name for path in files]
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_what_is_typed_is_stored_in_the_run_folder_and_its_mirror(train: Train) -> None:
    url = f"file://{train.folder}/user:opensesame@bucket"
    train(*SMALL, "run_name=run", f"checkpoint.mirror={url}")
    for folder in (train.folder / "runs" / "run", train.folder / "user:opensesame@bucket" / "run"):
        stored = {path.name for path in folder.iterdir() if path.is_file() and b"opensesame" in path.read_bytes()}
        assert {"config.yaml", "environment.json"} <= stored


def test_nodes_listen_at_the_address_of_the_rendezvous_and_execute_nothing(train: Train) -> None:
    import torch.distributed as dist

    address, executed = own_address(), train.folder / "executed"
    with socket.socket() as free:
        free.bind((address, 0))
        port = free.getsockname()[1]
    words = ["run_name=run", "launch.nnodes=2", f"launch.rdzv={address}:{port}"]
    # note: both are nodes of one machine, of which one serves the store
    folders = [train.folder / "first", train.folder / "second"]
    nodes, attack = [], pickle.dumps(Touch(executed))
    try:
        for folder in folders:
            folder.mkdir()
            with (folder / "log").open("w") as log:
                nodes.append(replace(train, folder=folder).start(*SMALL, *words, stdout=log, stderr=log))
        runs = [folder / "runs" / "run" for folder in folders]
        wait_for(lambda: max(map(steps_done, runs)) >= 2)
        sockets = {one for run in runs for one in listening(run)}
        assert (address, port) in sockets
        assert {ip for ip, _ in sockets} == {address}
        for place in sockets:
            with socket.create_connection(place, timeout=10) as stranger:
                stranger.sendall(attack)
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=10))
        for key in ("nodes", "node-0", "node-1"):
            store.set(key, attack.decode("latin-1"))
        store.set(_OF_TORCH, b64encode(attack).decode())
        logs = [folder / "log" for folder in folders]
        assert [node.wait() for node in nodes] == [0, 0], [log.read_text() for log in logs]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert all(f"({address}, port {port} and others), without encryption" in log.read_text() for log in logs)
    assert not executed.exists()
