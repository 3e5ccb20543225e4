"""Nodes that meet, restart, are lost and end the run, as threads of one process."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousInfo, RendezvousTimeoutError

from launcher.config.compose import compose
from launcher.config.fields import host_and_port
from launcher.errors import UserError
from launcher.launch import rendezvous
from launcher.launch.rendezvous import PeersRejoin, Rendezvous, open_rendezvous

Open = Callable[..., Rendezvous]


@pytest.fixture
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return a function that connects one of two nodes at a free port of this machine."""
    host = getattr(request, "param", "127.0.0.1")
    for name, seconds in {"_SECONDS_BETWEEN_POLLS": 0.02, "_SECONDS_OF_A_POLL": 0.5, "_SECONDS_TO_LIVE": 4.0}.items():
        monkeypatch.setattr(rendezvous, name, seconds)
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
def test_nodes_of_one_machine_meet_again_under_new_names(opened: Open) -> None:
    nodes = opened(), opened()
    for number in (1, 2):
        infos = meet(*nodes)
        assert {info.rank for info in infos} == {0, 1}
        assert {info.world_size for info in infos} == {2}
        assert {node.get_run_id() for node in nodes} == {f"train-{number}"}
        infos[0].store.set("key", str(number))
        assert infos[1].store.get("key") == str(number).encode()
        assert [node.num_nodes_waiting() for node in nodes] == [0, 0]


def test_a_node_that_waits_again_ends_the_round_of_the_others(opened: Open) -> None:
    first, second = opened(), opened()
    meet(first, second)
    waiting = threading.Thread(target=second.next_rendezvous)
    waiting.start()
    with pytest.raises(PeersRejoin):
        until_it_raises(first)
    meet(first)
    waiting.join()


def test_a_restarted_node_replaces_the_lost_one_and_another_node_waits(opened: Open) -> None:
    first, lost = opened(), opened()
    meet(first, lost)
    restarted = opened()
    waiting = threading.Thread(target=restarted.next_rendezvous)
    waiting.start()
    # note: while it lives, the third node changes nothing
    for _ in range(8):
        assert [node.num_nodes_waiting() for node in (first, lost)] == [0, 0]
        time.sleep(0.05)
    with pytest.raises(PeersRejoin):
        until_it_raises(first)
    assert meet(first)[0].world_size == 2
    waiting.join()
    assert restarted.get_run_id() == first.get_run_id() == "train-2"


def until_it_raises(node: Rendezvous) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        node.num_nodes_waiting()
        time.sleep(0.05)


def test_one_node_ends_the_run_of_the_others(opened: Open) -> None:
    first, second = opened(), opened()
    assert second.shutdown()
    assert first.is_closed()
    with pytest.raises(RendezvousClosedError):
        first.next_rendezvous()


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
