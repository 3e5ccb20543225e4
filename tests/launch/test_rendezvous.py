"""Nodes that meet, are missing, or are too many, as threads of one process."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest
from torch.distributed import DistNetworkError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousInfo, RendezvousTimeoutError

from launcher.config.compose import compose
from launcher.config.fields import host_and_port
from launcher.errors import MachineError, UserError
from launcher.launch import rendezvous
from launcher.launch.rendezvous import Rendezvous, open_rendezvous

Open = Callable[..., Rendezvous]


@pytest.fixture
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return a function that connects one of two nodes at a free port of this machine."""
    host = getattr(request, "param", "127.0.0.1")
    monkeypatch.setattr(rendezvous, "_SECONDS_BETWEEN_POLLS", 0.02)
    monkeypatch.setenv(rendezvous.INTERFACE, "")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        try:
            free.bind((host.strip("[]"), 0))
        except OSError as error:
            pytest.skip(f"no {host} here: {error.strerror}")
        port = free.getsockname()[1]

    def connected(*words: str) -> Rendezvous:
        several = ["launch=cpu", "launch.nnodes=2", f"launch.rdzv={host}:{port}", *words]
        return open_rendezvous(compose(several).config.launch)

    return connected


def meet(*nodes: Rendezvous) -> list[RendezvousInfo]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda node: node.next_rendezvous(), nodes))


@pytest.mark.parametrize("opened", ["127.0.0.1", "[::1]"], indirect=True)
def test_nodes_of_one_machine_meet(opened: Open) -> None:
    nodes = opened(), opened()
    infos = meet(*nodes)
    assert [info.rank for info in infos] == [0, 1]
    assert {info.world_size for info in infos} == {2}
    infos[0].store.set("key", "1")
    assert infos[1].store.get("key") == b"1"


def test_a_node_too_many_is_refused(opened: Open) -> None:
    _, _, third = opened(), opened(), opened()
    with pytest.raises(MachineError, match="2 nodes of the run have connected already"):
        third.next_rendezvous()


def test_a_lost_store_is_a_lost_connection(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> bool:
        raise DistNetworkError("connection reset")

    node = opened()
    monkeypatch.setattr(node, "_store", SimpleNamespace(set=lambda *_: None, check=lost))
    with pytest.raises(RendezvousConnectionError, match="connection reset"):
        node.next_rendezvous()


def test_a_node_that_waits_alone_times_out(opened: Open) -> None:
    with pytest.raises(RendezvousTimeoutError):
        opened("launch.rdzv_timeout=1").next_rendezvous()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("null", "is required with"),
        ("10.0.0.1", "must be HOST:PORT"),
        ("fd00::1:29400", r"must be HOST:PORT, such as 10.0.0.1:29400 or \[fd00::1\]:29400"),
        ("[fd00::1]:65536", "must be HOST:PORT"),
        ("10.0.0.1:0", "must be HOST:PORT"),
        ("no.such.host.invalid:1", "cannot be reached"),
    ],
)
def test_the_address_of_the_rendezvous_is_checked(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_rendezvous(compose(["launch=cpu", "launch.nnodes=2", f"launch.rdzv={word}"]).config.launch)
    assert [host_and_port(f"a:{port}") for port in (1, 65535)] == [("a", 1), ("a", 65535)]


def test_the_store_of_each_node_fails_after_the_same_seconds(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_STORE_SECONDS", 7)
    assert [node._store.timeout.total_seconds() for node in (opened(), opened())] == [7, 7]


def test_a_port_of_a_program_that_speaks_first_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_STORE_SECONDS", 2)
    monkeypatch.setenv(rendezvous.INTERFACE, "")
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    with other.accept()[0] as connection, suppress(OSError):
                        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        words = ["launch=cpu", "launch.nnodes=2", f"launch.rdzv=127.0.0.1:{other.getsockname()[1]}"]
        with pytest.raises(UserError, match="is in use by another program, which is no node of a run"):
            open_rendezvous(compose(words).config.launch)
        other.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_of_another_program_is_named(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a web server, which waits for the rest of a request."""
    monkeypatch.setattr(rendezvous, "_STORE_SECONDS", 0.2)
    monkeypatch.setenv(rendezvous.INTERFACE, "")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        try:
            other.bind((host, 0))
        except OSError as error:
            pytest.skip(f"no {host} here: {error.strerror}")
        other.listen()
        address = f"[{host}]" if ":" in host else host
        words = ["launch=cpu", "launch.nnodes=2", f"launch.rdzv={address}:{other.getsockname()[1]}"]
        with pytest.raises(UserError, match="is in use by another program, which is no node of a run"):
            open_rendezvous(compose(words).config.launch)
