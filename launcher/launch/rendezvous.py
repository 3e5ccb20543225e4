"""Connect the nodes of a run by torch elastic's rendezvous at `launch.rdzv`."""

import logging
import os
import socket
from contextlib import closing
from datetime import timedelta
from typing import Any

import psutil
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from launcher.config.schema import Launch
from launcher.errors import Problem, UserError

_STORE_SECONDS = 30  # time limit of the store; a node that loses its connection fails after it
_RUN = "train"


class PeersRejoin(Exception):
    """Another node has restarted and waits at the rendezvous: this one must restart too."""


class Rendezvous(DynamicRendezvousHandler):
    """Elastic's rendezvous, but a restart of another node is an error, not a silent restart of the ranks."""

    def num_nodes_waiting(self) -> int:
        """Return 0; raise PeersRejoin where elastic would restart the ranks itself."""
        if super().num_nodes_waiting():
            raise PeersRejoin
        return 0


def open_rendezvous(launch: Launch) -> Rendezvous:
    """Open the rendezvous of a run; a run on one node uses any free port.

    Raises UserError if `launch.rdzv` is missing on several nodes, is not HOST:PORT, or its host cannot be reached.
    Raises RendezvousError without a connection.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    nodes, address, endpoint = launch.nnodes, "localhost", "localhost:0"
    extra: dict[str, Any] = {}
    if nodes > 1:
        host, port = _host_and_port(launch)
        target, address = _addresses(host, port)
        _use_interface(address)
        # note: in elastic's own store, restarted ranks would read the keys of the previous ranks
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        endpoint, extra = f"{host}:{port}", {"is_host": address == target, "read_timeout": _STORE_SECONDS}
    backend, store = create_backend(RendezvousParameters("c10d", endpoint, _RUN, nodes, nodes, **extra))
    timeout = RendezvousTimeout(join=timedelta(seconds=launch.rdzv_timeout))
    rendezvous: Rendezvous = Rendezvous.from_backend(_RUN, store, backend, nodes, nodes, address, timeout)
    return rendezvous


def _host_and_port(launch: Launch) -> tuple[str, int]:
    if launch.rdzv is None:
        message = f"is required with launch.nnodes={launch.nnodes}; set launch.rdzv=HOST:PORT, the same on all nodes"
        raise UserError(Problem(message, "launch.rdzv", None))
    host, _, port = launch.rdzv.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(Problem("must be HOST:PORT, such as 10.0.0.1:29400", "launch.rdzv", launch.rdzv))
    return host, int(port)


def _use_interface(address: str) -> None:
    """Set gloo's interface to that of an address unless the user has set one; its default is the host name's."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _addresses(host: str, port: int) -> tuple[str, str]:
    """Return a host's address and this machine's address on the route to it, equal on the host; sends no packet."""
    try:
        target = socket.gethostbyname(host)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            probe.connect((target, port))
            return target, str(probe.getsockname()[0])
    except OSError as error:
        message = f"cannot be reached ({error.strerror}); set launch.rdzv to the address of one of the nodes"
        raise UserError(Problem(message, "launch.rdzv", host)) from None
