"""The rank of this process: its device, process group, and communication with the other ranks."""

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.compute.accelerator import has_streams, interface
from launcher.compute.foreach import by_dtype
from launcher.config.resolved import fingerprint
from launcher.config.schema import RunConfig
from launcher.errors import MachineError, UserError
from launcher.rank.signs import DEVICE, HEARTBEAT, INTERFACE, STORE

_NEVER = timedelta(days=365)  # for collectives: the launcher ends ranks that hang, and ends none that was suspended
_SECONDS_BETWEEN_BEATS = 0.1

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Zero-based rank of this process, globally and on this node, and its device."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def device_name(self) -> str:
        return interface(self.device).get_device_name(self.device) if has_streams(self.device) else self.device.type


def single_rank(device: torch.device) -> Ranks:
    """Return the only rank of a run with one process."""
    return Ranks(0, 1, 0, 1, device)


def use_device(kind: str, number: int) -> torch.device:
    """Return and activate the device that the launcher chose: the CPU, or the GPU of a number.

    Raises MachineError if the GPU fails.
    """
    if kind == "cpu":
        return torch.device("cpu")
    # note: deterministic cuBLAS needs it before the first CUDA call
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = torch.device(kind, number)
    try:
        if has_streams(device):
            interface(device).set_device(device)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        advice = "check it with train doctor or nvidia-smi, or train without it: launch.nproc=N or launch.device=cpu"
        raise MachineError(f"GPU {number} failed after startup detected it: {reason}; {advice}") from error
    return device


@contextmanager
def join_ranks(config: RunConfig) -> Iterator[Ranks]:
    """Connect the ranks of the environment variables (NCCL on GPUs, gloo on CPUs), and leave them at the end.

    The only rank of a run needs no connection.

    Raises MachineError if the GPU of this rank fails or some ranks have none, and UserError if the configs of ranks
    differ.
    """
    rank, world_size, local_rank, local_world_size = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    device = use_device(os.environ[DEVICE], local_rank)
    if world_size > 1:
        # note: else a captured all-reduce may wait for ranks whose capture has failed, to register memory
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        # note: gloo beside NCCL reduces flags and sums on the CPU without a host-device synchronization
        own = dist.get_default_backend_for_device(device)
        backends = "cpu:gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{own}"
        with HEARTBEAT.connecting():
            if rank == 0:
                print(f"connecting {world_size} {'processes' if device.type == 'cpu' else 'GPUs'}", flush=True)
            dist.init_process_group(backends, timeout=_NEVER, store=_store(), rank=rank, world_size=world_size)
            check_agreement(device.type, config)
            # note: NCCL connects the GPUs at the first collective
            max_over_ranks(torch.zeros(1, device=device)).item()
    yield Ranks(rank, world_size, local_rank, local_world_size, device)
    # note: not after a failure: it may block, and peers would fail before the cause is recorded
    if world_size > 1:
        dist.destroy_process_group()


def _store() -> dist.Store:
    """Open the store where the ranks meet, and bind their sockets to the interface between them.

    It is a file that only the user can read, or on several nodes the launcher's store.

    Raises UserError if the user has set an interface that this machine does not have.
    """
    path = os.environ[STORE]
    if name := os.environ[INTERFACE]:
        # note: the profile of a cluster may name an interface between its nodes, which one node does not need
        for variable, value in (("GLOO_SOCKET_IFNAME", name), ("NCCL_SOCKET_IFNAME", f"={name}")):
            os.environ[variable] = value if path else os.environ.get(variable, value)
    here = [*psutil.net_if_addrs()]
    if missing := [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name and name not in here]:
        message = f"GLOO_SOCKET_IFNAME={missing[0]} is no network interface of this machine, which has "
        raise UserError(f"{message}{', '.join(here)}; set one of them, or unset the variable")
    if path:
        return dist.FileStore(path, int(os.environ["WORLD_SIZE"]))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return dist.PrefixStore(os.environ["TORCHELASTIC_RUN_ID"], store)


def check_agreement(kind: str, config: RunConfig) -> None:
    """Check that all ranks have the same config, and all train on GPUs or all on CPUs.

    Raises MachineError if some have no GPU, since each node's launcher chooses its own devices, and UserError if some
    have another config.
    """
    everyone = gather((kind, fingerprint(config)))
    without = [rank for rank, (other, _) in enumerate(everyone) if other == "cpu"]
    if 0 < len(without) < len(everyone):
        raise MachineError(
            f"ranks {without} have no GPU, but the others do; set launch.device=cuda on their node to see why"
        )
    if others := [rank for rank, (_, other) in enumerate(everyone) if other != everyone[0][1]]:
        raise UserError(f"ranks {others} and rank 0 have different configs; run the same command on all nodes")


def gather(value: T) -> list[T]:
    """Return the values of all ranks, in the order of ranks: plain values and tensors, which are not unpickled."""
    if not dist.is_initialized():
        return [value]
    own = _packed(value)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(own)]))
    most = max(map(int, sizes))
    parts = [torch.empty(most, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(parts, nn.functional.pad(own, (0, most - len(own))))
    return [_unpacked(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]


def from_first(value: T) -> T:
    """Return rank 0's value, of plain values and tensors, on all ranks; all ranks call this together."""
    if not dist.is_initialized():
        return value
    packed = _packed(value) if dist.get_rank() == 0 else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([len(packed)])
    dist.broadcast(size, src=0)
    packed = packed if len(packed) else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(packed, src=0)
    return value if dist.get_rank() == 0 else _unpacked(packed)


def _packed(value: object) -> Tensor:
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _unpacked(packed: Tensor) -> Any:
    return torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True)


def wait_for_ranks(beat: Callable[[], None]) -> None:
    """Wait until all ranks call this, and call `beat` meanwhile."""
    if dist.is_initialized():
        work = dist.all_reduce(torch.zeros(1), async_op=True)
        while not work.is_completed():
            beat()
            time.sleep(_SECONDS_BETWEEN_BEATS)
        work.wait()


def max_over_ranks(values: Tensor) -> Tensor:
    """Replace each value on the device by its maximum over all ranks, in place, without a synchronization."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def any_rank(flag: bool) -> bool:
    """Return whether a flag is set on any rank; every rank must call it, and it waits for all of them."""
    return bool(max_over_ranks(torch.tensor(int(flag))))


@torch.no_grad()
def broadcast_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite the tensors of every rank with those of rank 0, in place, by one broadcast per dtype."""
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return
    for group in by_dtype(tensors):
        buffer = torch.cat([tensor.flatten() for tensor in group])
        dist.broadcast(buffer, src=0)
        parts = buffer.split([tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [part.view_as(tensor) for part, tensor in zip(parts, group, strict=True)])
