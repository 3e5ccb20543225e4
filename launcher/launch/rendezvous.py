"""Connect the nodes of a run: one node without a network, several through a store at `launch.rdzv`.

Elastic's own rendezvous listens on all interfaces and unpickles what it receives; this one does neither.
"""

import errno
import logging
import os
import queue
import socket
import threading
import time
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from launcher.config.fields import host_and_port
from launcher.config.schema import Launch
from launcher.errors import MachineError, Problem, UserError
from launcher.installation import page
from launcher.rank.signs import INTERFACE

_STORE_SECONDS = 8  # time limit of the store; a node that loses its connection fails after it
_SECONDS_BETWEEN_POLLS = 0.5
_LOOPBACK = "127.0.0.1"


class Rendezvous(RendezvousHandler):
    """The rendezvous of a run on one node, which opens no socket."""

    def get_backend(self) -> str:
        return "train"

    def get_run_id(self) -> str:
        return "train"

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(dist.HashStore(), 0, 1, RendezvousStoreInfo("localhost", 0))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


class _PolledStore:
    """A store that polls for the end of the other nodes: torch's wait of five minutes handles no stop signal."""

    def __init__(self, store: Any):
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str]) -> None:
        """Wait for keys. Raises DistStoreError after the time limit of the store."""
        end = time.monotonic() + self._store.timeout.total_seconds()
        while not self._store.check(keys):
            if time.monotonic() > end:
                raise dist.DistStoreError(f"another node has not set {', '.join(keys)}")
            time.sleep(_SECONDS_BETWEEN_POLLS)


class NodesRendezvous(Rendezvous):
    """The rendezvous of a fixed number of nodes, each of which joins once; the ranks use the same store.

    The node that serves the store is the first, and the store counts the others.
    """

    def __init__(self, store: dist.TCPStore, nodes: int, join_seconds: float, *, serves: bool):
        self._store, self._nodes, self._seconds = store, nodes, join_seconds
        self._number = 0 if serves else int(store.add("nodes", 1))

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all nodes.

        Raises RendezvousTimeoutError if some do not connect, RendezvousConnectionError if the store is lost, and
        MachineError if there are too many nodes.
        """
        if self._number >= self._nodes:
            raise MachineError(f"{self._nodes} nodes of the run have connected already; set launch.nnodes higher")
        end, names = time.monotonic() + self._seconds, [f"node-{number}" for number in range(self._nodes)]
        try:
            self._store.set(f"node-{self._number}", "")
            while not self._store.check(names):
                if time.monotonic() > end:
                    raise RendezvousTimeoutError
                time.sleep(_SECONDS_BETWEEN_POLLS)
        except dist.DistError as error:
            raise RendezvousConnectionError(str(error)) from None
        store: Any = _PolledStore(dist.PrefixStore("ranks", self._store))
        address = RendezvousStoreInfo(self._store.host, self._store.port)
        return RendezvousInfo(store, self._number, self._nodes, address)


def open_rendezvous(launch: Launch) -> Rendezvous:
    """Open the rendezvous of a run, and set the interface of its ranks: one node uses no other than loopback.

    Raises UserError if `launch.rdzv` is missing on several nodes, is not HOST:PORT, or its host cannot be reached.
    Raises RendezvousError without a connection.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    host, port, address = _addresses(launch)
    os.environ[INTERFACE] = _interface(address)
    if launch.nnodes == 1:
        return Rendezvous()
    try:
        store, serves = _open_store(host, port, launch.rdzv, may_serve=host == address)
        return NodesRendezvous(store, launch.nnodes, launch.rdzv_timeout, serves=serves)
    except (OSError, RuntimeError) as error:
        raise RendezvousConnectionError(str(error)) from None


def who_may_connect(launch: Launch) -> str:
    """Describe for the user who can reach a run on several nodes. Raises UserError as `open_rendezvous`."""
    _, port, address = _addresses(launch)
    who = f"nodes and ranks connect over {_interface(address) or address} ({address}, port {port} and others)"
    return f"{who}, without encryption or password: use a network that only they can reach; see {page('security')}"


def _open_store(host: str, port: int, typed: str | None, *, may_serve: bool) -> tuple[dist.TCPStore, bool]:
    """Serve the store at this numeric address alone, or connect to it if it is on another node or in another process.

    Raises UserError for the `typed` address if another program listens there.
    """
    timeout = timedelta(seconds=_STORE_SECONDS)
    if may_serve:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            return dist.TCPStore(host, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach()), True
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
    socket.create_connection((host, port), _STORE_SECONDS).close()
    connections: queue.SimpleQueue[dist.TCPStore | None] = queue.SimpleQueue()

    def connect() -> None:
        connection = None
        with suppress(Exception):
            connection = dist.TCPStore(host, port, is_master=False, timeout=timeout)
        connections.put(connection)

    # note: the store would wait forever for a program that reads but never replies, also after a stop signal
    threading.Thread(target=connect, name="rendezvous", daemon=True).start()
    with suppress(queue.Empty):
        if connection := connections.get(timeout=2 * _STORE_SECONDS):
            return connection, False
        # note: fails if it was the store of a node that has ended
        socket.create_connection((host, port), _STORE_SECONDS).close()
    message = "is in use by another program, which is no node of a run; set another port"
    raise UserError(Problem(message, "launch.rdzv", typed))


def _interface(address: str) -> str:
    """Return the network interface with an address of this machine; empty if there is none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    return ""


def _addresses(launch: Launch) -> tuple[str, int, str]:
    """Return address and port of the rendezvous, and this machine's address on the route to it; sends no packet."""
    if launch.nnodes == 1:
        return _LOOPBACK, 0, _LOOPBACK
    if launch.rdzv is None:
        message = f"is required with launch.nnodes={launch.nnodes}; set launch.rdzv=HOST:PORT, the same on all nodes"
        raise UserError(Problem(message, "launch.rdzv", None))
    host, port = host_and_port(launch.rdzv)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        # note: nodes may resolve a name in another order
        family, _, _, _, target = min(found, key=lambda one: (one[0] != socket.AF_INET, one[4][0]))
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect(target)
            return str(target[0]), port, str(probe.getsockname()[0])
    except OSError as error:
        message = f"cannot be reached ({error.strerror}); set launch.rdzv to the address of one of the nodes"
        raise UserError(Problem(message, "launch.rdzv", host)) from None
