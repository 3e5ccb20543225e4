"""Torch elastic's agent of this machine, and the rendezvous at which several machines meet."""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import closing

import psutil
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from launcher.config.schema import Launch
from launcher.errors import Problem, UserError

_DEFAULT_PORT = 29400
_SECONDS_TO_SHUT_DOWN = 5
_STORE_SECONDS = 30  # the store's answer; a machine that was cut off notices after so long


class PeersRejoin(Exception):
    """Another machine waits at the rendezvous: it has restarted, and so must this one."""


class Rendezvous(RendezvousHandler):
    """Elastic's rendezvous, where one machine's restart is an error on the others, not a silent one."""

    def __init__(self, launch: Launch):
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        host, port = endpoint(launch)
        self.address, extra = "localhost", {}
        if launch.nnodes > 1:
            self.address = _address_towards(host, port)
            _talk_through(self.address)
            # note: the ranks of a restart would find the keys of the ranks before them in elastic's own store
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            extra = {"is_host": _is_here(host), "join_timeout": launch.rdzv_timeout, "read_timeout": _STORE_SECONDS}
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=f"{host}:{port}",
            run_id="train",
            min_nodes=launch.nnodes,
            max_nodes=launch.nnodes,
            local_addr=self.address,
            **extra,
        )
        self._handler = rendezvous_registry.get_rendezvous_handler(parameters)

    @property
    def use_agent_store(self) -> bool:
        return bool(self._handler.use_agent_store)

    def get_backend(self) -> str:
        return self._handler.get_backend()

    def next_rendezvous(self) -> RendezvousInfo:
        return self._handler.next_rendezvous()

    def is_closed(self) -> bool:
        return self._handler.is_closed()

    def set_closed(self) -> None:
        self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """Raises PeersRejoin where elastic would restart the ranks by itself."""
        if self._handler.num_nodes_waiting():
            raise PeersRejoin
        return 0

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        return self._handler.shutdown()


def make_agent(processes: int, rendezvous: Rendezvous, words: tuple[str, ...], scratch: str) -> LocalElasticAgent:
    """Make an agent that runs launcher.rank.main with these words in each process, and never restarts them."""
    # note: stop requests are ours to pass on; only SIGQUIT makes the agent itself drop everything
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    spec = WorkerSpec(
        role="rank",
        local_world_size=processes,
        entrypoint=sys.executable,
        args=("-u", "-m", "launcher.rank.main", *words),
        rdzv_handler=rendezvous,
        max_restarts=0,
        # note: the watch looks more often, so it sees who ended first before elastic ends the others
        monitor_interval=0.5,
        local_addr=rendezvous.address,
    )
    # note: ranks redirect themselves to files that go on over resumes; only elastic's error files lie in scratch.
    # By the shutdown the ranks have ended or the watch has killed them.
    return LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=scratch), shutdown_timeout=_SECONDS_TO_SHUT_DOWN)


def endpoint(launch: Launch) -> tuple[str, int]:
    """Host and port of the rendezvous; on one machine any free port.

    Raises:
        UserError: `launch.rdzv` is missing where it is needed, or is no HOST:PORT.
    """
    if launch.nnodes == 1:
        return "localhost", 0
    if launch.rdzv is None:
        message = "is needed with launch.nnodes above 1: HOST:PORT of one of the machines, the same on all"
        raise UserError(Problem(message, "launch.rdzv", None))
    host, _, port = launch.rdzv.rpartition(":") if ":" in launch.rdzv else (launch.rdzv, "", str(_DEFAULT_PORT))
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(Problem("is no HOST:PORT, such as 10.0.0.1:29400", "launch.rdzv", launch.rdzv))
    return host, int(port)


def _talk_through(address: str) -> None:
    """Have gloo use the interface of an address, unless the user has named one; by itself it takes the host name's."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UserError(Problem(f"its host is not known here: {error.strerror}", "launch.rdzv", host)) from None


def _is_here(host: str) -> bool:
    here = {known.address for addresses in psutil.net_if_addrs().values() for known in addresses}
    return _resolve(host) in here


def _address_towards(host: str, port: int) -> str:
    """This machine's own address on the way to a host; nothing is sent."""
    target = _resolve(host)
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect((target, port))
        except OSError as error:
            raise UserError(Problem(f"cannot be reached: {error.strerror}", "launch.rdzv", host)) from None
        return str(probe.getsockname()[0])
