"""Connect the nodes of a run: one node without a network, several through a store at `launch.rdzv`.

Elastic's own rendezvous listens on all interfaces and unpickles what it receives; this one does neither.
"""

import errno
import json
import logging
import os
import queue
import secrets
import socket
import threading
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from launcher.config.fields import host_and_port
from launcher.config.schema import Launch
from launcher.errors import Problem, UserError
from launcher.installation import page
from launcher.rank.signs import INTERFACE

_STORE_SECONDS = 8  # time limit of the store; a node that loses its connection fails after it
_SECONDS_BETWEEN_POLLS = 0.5
_SECONDS_OF_A_POLL = 5.0  # a node that has polled within them is ready
_SECONDS_TO_LIVE = 15.0  # without a poll, after which a node is lost
_STATE = "state"
_LOOPBACK = "127.0.0.1"


class PeersRejoin(RendezvousError):
    """Another node has restarted and waits at the rendezvous: this one must restart too."""


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


@dataclass(frozen=True)
class _State:
    """What the nodes agree on: the members of the current round, and the nodes that wait for the next one."""

    round: int = 0
    members: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    closed: bool = False

    def encoded(self) -> str:
        return json.dumps(asdict(self))


class NodesRendezvous(Rendezvous):
    """The rendezvous of a fixed number of nodes, whose state is JSON in a store; the ranks use the same store.

    A round starts when all nodes wait for it and poll. A node that is lost or restarts ends the round of the others.

    Every method raises RendezvousConnectionError if the store cannot be reached.
    """

    def __init__(self, store: dist.TCPStore, nodes: int, address: str, join_seconds: float):
        self._store, self._nodes, self._join_seconds = store, nodes, join_seconds
        self._name = f"{address}-{os.getpid()}-{secrets.token_hex(4)}"
        self._round = 0
        self._polls: dict[str, tuple[bytes, float]] = {}
        self._call("compare_set", _STATE, "", _State().encoded())

    def get_run_id(self) -> str:
        """Return a name of the round, by which its ranks prefix their keys."""
        return f"train-{self._round}"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all nodes.

        Raises RendezvousClosedError if one has ended the run, and RendezvousTimeoutError if some do not connect.
        """
        end = time.monotonic() + self._join_seconds
        while not (state := self._joined()):
            if time.monotonic() > end:
                raise RendezvousTimeoutError
            time.sleep(_SECONDS_BETWEEN_POLLS)
        self._round = state.round
        store: Any = _PolledStore(dist.PrefixStore(f"nodes-{state.round}", self._store))
        address = RendezvousStoreInfo(self._store.host, self._store.port)
        return RendezvousInfo(store, state.members.index(self._name), self._nodes, address)

    def num_nodes_waiting(self) -> int:
        """Return 0; raise PeersRejoin if another node waits in place of a lost member, or a member itself."""
        state, _ = self._read()
        self._poll(state)
        for node in state.members if state.waiting else ():
            if node in state.waiting or not self._polled(node, _SECONDS_TO_LIVE):
                raise PeersRejoin
        return 0

    def is_closed(self) -> bool:
        return self._read()[0].closed

    def set_closed(self) -> None:
        while not (read := self._read())[0].closed:
            self._replace(read, replace(read[0], closed=True))

    def shutdown(self) -> bool:
        """End the run of all nodes."""
        with suppress(RendezvousError):
            self.set_closed()
            return True
        return False

    def _joined(self) -> _State | None:
        """Return the state if a new round has this node, else wait for one, or start it if all nodes are ready."""
        read = state, _ = self._read()
        if state.closed:
            raise RendezvousClosedError
        if state.round > self._round and self._name in state.members:
            return state
        self._poll(state)
        waiting = sorted({self._name, *(node for node in state.waiting if self._polled(node, _SECONDS_TO_LIVE))})
        changed = replace(state, waiting=waiting)
        if len(waiting) >= self._nodes and all(self._polled(node, _SECONDS_OF_A_POLL) for node in waiting):
            members, later = waiting[: self._nodes], waiting[self._nodes :]
            changed = _State(state.round + 1, members, later)
        if changed != state:
            self._replace(read, changed)
        return None

    def _poll(self, state: _State) -> None:
        """Count a poll of this node, and note those of the others if a node waits."""
        self._call("add", f"polls/{self._name}", 1)
        nodes = sorted({*state.members, *state.waiting}) if state.waiting else []
        counts = self._call("multi_get", [f"polls/{node}" for node in nodes]) if nodes else []
        now = time.monotonic()
        for node, polls in zip(nodes, counts, strict=True):
            # note: at first a node is neither lost nor ready
            before, since = self._polls.get(node, (polls, now - _SECONDS_OF_A_POLL))
            self._polls[node] = polls, since if polls == before else now

    def _polled(self, node: str, seconds: float) -> bool:
        """Return whether a node has polled within some seconds."""
        return node == self._name or time.monotonic() - self._polls[node][1] < seconds

    def _read(self) -> tuple[_State, bytes]:
        data = self._call("get", _STATE)
        try:
            return _State(**json.loads(data)), data
        except (ValueError, TypeError) as error:
            raise RendezvousStateError("another program has written to the rendezvous") from error

    def _replace(self, read: tuple[_State, bytes], state: _State) -> None:
        """Replace the state that was read, unless another node has replaced it."""
        self._call("compare_set", _STATE, read[1].decode(), state.encoded())

    def _call(self, operation: str, *values: str | int | list[str]) -> Any:
        try:
            return getattr(self._store, operation)(*values)
        except RuntimeError as error:
            raise RendezvousConnectionError(str(error)) from None


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
        store = _open_store(host, port, launch.rdzv, serves=host == address)
    except (OSError, RuntimeError) as error:
        raise RendezvousConnectionError(str(error)) from None
    return NodesRendezvous(store, launch.nnodes, address, launch.rdzv_timeout)


def who_may_connect(launch: Launch) -> str:
    """Describe for the user who can reach a run on several nodes. Raises UserError as `open_rendezvous`."""
    _, port, address = _addresses(launch)
    who = f"nodes and ranks connect over {_interface(address) or address} ({address}, port {port} and others)"
    return f"{who}, without encryption or password: use a network that only they can reach; see {page('security')}"


def _open_store(host: str, port: int, typed: str | None, *, serves: bool) -> dist.TCPStore:
    """Serve the store at this numeric address alone, or connect to it if it is on another node or in another process.

    Raises UserError for the `typed` address if another program listens there.
    """
    timeout = timedelta(seconds=_STORE_SECONDS)
    if serves:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            return dist.TCPStore(host, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach())
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
            return connection
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
