"""Where the machines of a run meet: torch elastic's rendezvous, at `launch.rdzv`."""

from __future__ import annotations

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

_STORE_SECONDS = 30  # the store's answer; a machine that was cut off notices after so long
_RUN = "train"


class PeersRejoin(Exception):
    """Another machine waits at the rendezvous: it has restarted, and so must this one."""


class Rendezvous(DynamicRendezvousHandler):
    """Elastic's rendezvous, where another machine's restart is an error, not a silent restart of the ranks."""

    def num_nodes_waiting(self) -> int:
        """Raises PeersRejoin where elastic would restart the ranks by itself."""
        if super().num_nodes_waiting():
            raise PeersRejoin
        return 0


def open_rendezvous(launch: Launch) -> Rendezvous:
    """Open the rendezvous of a run, on one machine at any free port.

    Raises:
        UserError: `launch.rdzv` is missing where it is needed, is no HOST:PORT, or its host cannot be reached.
        RendezvousError: it does not answer.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    nodes, address, endpoint = launch.nnodes, "localhost", "localhost:0"
    extra: dict[str, Any] = {}
    if nodes > 1:
        host, port = _host_and_port(launch)
        target, address = _addresses(host, port)
        _use_interface(address)
        # note: the ranks of a restart would find the keys of the ranks before them in elastic's own store
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        endpoint, extra = f"{host}:{port}", {"is_host": address == target, "read_timeout": _STORE_SECONDS}
    backend, store = create_backend(RendezvousParameters("c10d", endpoint, _RUN, nodes, nodes, **extra))
    timeout = RendezvousTimeout(join=timedelta(seconds=launch.rdzv_timeout))
    rendezvous: Rendezvous = Rendezvous.from_backend(_RUN, store, backend, nodes, nodes, address, timeout)
    return rendezvous


def _host_and_port(launch: Launch) -> tuple[str, int]:
    if launch.rdzv is None:
        message = "is needed with launch.nnodes above 1: HOST:PORT of one of the machines, the same on all"
        raise UserError(Problem(message, "launch.rdzv", None))
    host, _, port = launch.rdzv.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(Problem("is no HOST:PORT, such as 10.0.0.1:29400", "launch.rdzv", launch.rdzv))
    return host, int(port)


def _use_interface(address: str) -> None:
    """Have gloo use the interface of an address, unless the user has named one; by itself it takes the host name's."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _addresses(host: str, port: int) -> tuple[str, str]:
    """A host's address, and this machine's own on the way there: the same one on the host itself; nothing is sent."""
    try:
        target = socket.gethostbyname(host)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            probe.connect((target, port))
            return target, str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(Problem(f"cannot be reached: {error.strerror}", "launch.rdzv", host)) from None
