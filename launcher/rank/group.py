"""This process among its peers: rank, device, process group, and what they send one another."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from launcher.config.resolved import fingerprint
from launcher.config.schema import RunConfig
from launcher.errors import MachineError, UserError
from launcher.foreach import by_dtype
from launcher.rank.signs import DEVICE, SECONDS_TO_START

_AFTER_THE_WATCH = timedelta(minutes=5)

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Zero-based rank of this process, among all and on this machine, and its device."""

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
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"


def alone(device: torch.device) -> Ranks:
    """The one rank of a process that has no peers."""
    return Ranks(0, 1, 0, 1, device)


def claim(kind: str, number: int) -> torch.device:
    """The device that the launcher has decided on, `cpu` or the GPU of that number, in use by this process from now on.

    Raises:
        MachineError: the GPU cannot be used.
    """
    if kind == "cpu":
        return torch.device("cpu")
    # note: deterministic cuBLAS needs it before the first CUDA call
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = torch.device(kind, number)
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        advice = "check it with train doctor or nvidia-smi, or train without it: launch.nproc=N or launch.device=cpu"
        raise MachineError(f"GPU {number} failed after startup detected it: {reason}; {advice}") from error
    return device


def collective_timeout(hang_timeout: float | None) -> timedelta:
    """How long a collective waits for its peers: longer than the watch, which ends ranks that hang with stacks."""
    if hang_timeout is None:
        return timedelta(days=365)
    return timedelta(seconds=max(hang_timeout, SECONDS_TO_START)) + _AFTER_THE_WATCH


@contextmanager
def join_ranks(config: RunConfig) -> Iterator[Ranks]:
    """Join the process group that the environment names (NCCL on GPUs, gloo on a CPU); leave it at the end.

    Raises:
        MachineError: this rank cannot have the device that the launcher decided on, or others have another kind.
        UserError: others were given another config.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    device = claim(os.environ[DEVICE], local_rank)
    # note: gloo beside NCCL lets flags and sums on the CPU cross ranks without a GPU synchronisation
    backends = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "cpu:gloo"
    dist.init_process_group(backends, timeout=collective_timeout(config.launch.hang_timeout))
    check_same(device.type, config)
    yield Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=local_rank,
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=device,
    )
    # note: not after a failure, where it may wait for peers and lets them fail before the cause is recorded
    dist.destroy_process_group()


def check_same(kind: str, config: RunConfig) -> None:
    """All ranks, on whatever machine, must train on GPUs, or all on the CPU, and have been given the same run.

    Raises:
        MachineError: some have no GPU: each machine's launcher decides for its own.
        UserError: some were given another run.
    """
    everyone = gather((kind, fingerprint(config)))
    without = [rank for rank, (other, _) in enumerate(everyone) if other == "cpu"]
    if 0 < len(without) < len(everyone):
        raise MachineError(
            f"ranks {without} have no GPU, the others have; set launch.device=cuda on their node to see why"
        )
    if others := [rank for rank, (_, other) in enumerate(everyone) if other != everyone[0][1]]:
        raise UserError(f"ranks {others} and rank 0 have different configs; run the same command on all nodes")


def distribute(model: nn.Module, ranks: Ranks, gradient_dtype: str = "float32") -> nn.Module:
    """The model wrapped in DDP where there are peers; where other parameters learn later, it is to be wrapped anew.

    Gradients cross ranks as `float32` or as `bfloat16`, in half the bytes: with N ranks each value of the average is
    then off by at most (N + 1) / 256 of the mean of its sizes. Batch-norm statistics stay local while training; where a
    network evaluates, rank 0's count, and they are the ones saved.
    """
    if ranks.world_size == 1:
        return model
    device_ids = [ranks.device.index] if ranks.device.type == "cuda" else None
    with warnings.catch_warnings():
        # note: torch 2.15 has another name for it, which older ones do not know
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        network = DistributedDataParallel(
            model,
            device_ids=device_ids,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
    if gradient_dtype == "bfloat16":
        network.register_comm_hook(dist.group.WORLD, bf16_compress_hook)
    _settle_buckets(network, ranks.device)
    return network


def _settle_buckets(network: DistributedDataParallel, device: torch.device) -> None:
    """Have DDP sort its buckets before the first step.

    It does so after the first backward pass that crosses ranks, by the order in which gradients came. Sums of three
    and more depend on where in a bucket a gradient lies, so a resumed run's first step would differ from the same step
    of a run that went through. Here the gradients come as in training, the last parameter's first.
    """
    model, touch = network.module, nn.Module()
    touch.forward = lambda start: sum((parameter.sum() for parameter in model.parameters()), start)
    network.module = touch
    network(torch.zeros((), device=device)).backward()
    network.module = model
    model.zero_grad(set_to_none=True)


def gather(value: T) -> list[T]:
    """Every rank's value, in their order."""
    if not dist.is_initialized():
        return [value]
    everyone = [value] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def highest(values: Tensor) -> Tensor:
    """Each of some values on the device as the highest of all ranks, in place; nothing waits for it."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def any_rank(flag: bool) -> bool:
    """Whether a flag is set on any rank; called by every rank, and waits for all of them."""
    return bool(highest(torch.tensor(int(flag))))


@torch.no_grad()
def broadcast_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite every rank's tensors by rank 0's, in place; one message a dtype."""
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return
    for group in by_dtype(tensors):
        message = torch.cat([tensor.flatten() for tensor in group])
        dist.broadcast(message, src=0)
        parts = message.split([tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [part.view_as(tensor) for part, tensor in zip(parts, group, strict=True)])
