"""Choose the devices that a run trains on."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.compute.accelerator import Kind
from launcher.compute.probe import TORCH, cards_on_the_bus, processor_features, remedy_of_cuda, run_probe, visible_gpus
from launcher.config.schema import Launch
from launcher.counts import count_of
from launcher.errors import MachineError, Problem, UserError
from launcher.plan.plan import Plan, processes_of_node

ON_THE_CPU = "set launch.device=cpu to train on the CPU"
_AMX_FROM = 64  # pixels: ResNet-18 406 instead of 283 images/s, ResNet-50 88 instead of 60; below 64 not measured
_APPLE = "the run trains on the CPU; launch.device=mps trains on an Apple GPU, on which no run was made"
_ON_APPLE = (
    "no run was made on an Apple GPU; mps has no CUDA graphs, pinned memory, float64 or second process, the host waits "
    "for it in each step, and precision=auto is fp32 (or set fp16)"
)


@dataclass(frozen=True)
class Devices:
    """The devices of a node: one GPU per process, or the CPU for all processes.

    gpu: the name of the GPUs if torch has reported them and all are the same, such as NVIDIA A100-SXM4-40GB.
    addresses: of each process's GPU on the PCI bus, if torch has reported it.
    """

    kind: Kind
    processes: int
    notes: list[str] = field(default_factory=list)
    gpu: str | None = field(default=None, compare=False)
    addresses: Sequence[str | None] = field(default=(), compare=False)

    def __str__(self) -> str:
        if self.kind == "cuda":
            return count_of(self.processes, "GPU")
        if self.kind == "mps":
            return "an Apple GPU"
        return f"{count_of(self.processes, 'process')} on the CPU"


def decide(launch: Launch, *, probe_cuda: bool = True) -> Devices:
    """Choose all GPUs that CUDA or ROCm can use, or the devices of the config.

    `probe_cuda=False` saves seconds and assumes that CUDA can use all visible GPUs.

    Raises UserError if the config sets more processes than GPUs, or launch.device=cuda and no GPU is visible. Raises
    MachineError if torch cannot use the visible GPUs.
    """
    if launch.device == "mps":
        return _apple(launch)
    visible = visible_gpus() if launch.device != "cpu" else 0
    gpus = _usable(visible) if visible and probe_cuda else [{}] * visible
    if not (usable := len(gpus)):
        if launch.device == "cuda":
            raise UserError(Problem(f"no GPU is visible; {ON_THE_CPU}", "launch.device", "cuda"))
        hidden = launch.device == "cpu" or "CUDA_VISIBLE_DEVICES" in os.environ
        cards = 0 if hidden else cards_on_the_bus()
        unused = f"{count_of(cards, 'NVIDIA card')} on the bus, but torch detects none; {remedy_of_cuda('')}"
        notes = [unused] if cards else [_APPLE] if sys.platform == "darwin" and not hidden else []
        return Devices("cpu", processes_of_node(launch, 0), notes)
    text, notes = _visible(visible), []
    if usable < visible:
        text = f"{text}, but CUDA can use only {usable}"
        notes = [f"{text}: the others have failed, or are split into MIG instances, of which a run uses one"]
    if launch.nproc != "auto" and launch.nproc > usable:
        message = f"{text}; set launch.nproc={usable}, or launch.device=cpu to train on the CPU"
        raise UserError(Problem(message, "launch.nproc", launch.nproc))
    names, addresses = [gpu.get("name") for gpu in gpus], [gpu.get("address") for gpu in gpus]
    count = processes_of_node(launch, usable)
    return Devices("cuda", count, notes, names[0] if len({*names}) == 1 else None, addresses[:count])


def _apple(launch: Launch) -> Devices:
    """Raises UserError if torch detects no Apple GPU, or the config sets more than one process."""
    if not (values := run_probe(TORCH).values) or not values["mps"]:
        raise UserError(Problem(f"torch detects no Apple GPU (mps); {ON_THE_CPU}", "launch.device", "mps"))
    if launch.nproc not in ("auto", 1):
        raise UserError(Problem("an Apple GPU trains in one process; set launch.nproc=1", "launch.nproc", launch.nproc))
    return Devices("mps", 1, [_ON_APPLE])


def _usable(visible: int) -> list[dict[str, Any]]:
    """Return what torch reports of the visible GPUs that CUDA can use; none if it is built without CUDA and ROCm.

    Raises MachineError if torch fails on them, or CUDA can use none.
    """
    probed = run_probe(TORCH)
    if (values := probed.values) is None:
        raise MachineError(f"torch fails on the visible GPUs ({probed.error}); {remedy_of_cuda(probed.error)}")
    if not values["cuda"] and not values["hip"]:
        return []
    if not values["gpus"] or values["error"]:
        error = values["error"]
        raise MachineError(f"{_visible(visible)}, but CUDA can use none ({error}); {remedy_of_cuda(error)}")
    return list(values["gpus"])


def _visible(count: int) -> str:
    return f"{count_of(count, 'GPU')} {'is' if count == 1 else 'are'} visible"


def planned(launch: Launch, gpus: int | None) -> Devices:
    """Describe the devices of a node with `gpus` GPUs, or of this machine if None.

    Raises UserError if the config sets more processes than GPUs.
    """
    if gpus is None or launch.device == "mps":
        return decide(launch, probe_cuda=False)
    if launch.device != "cpu" and launch.nproc != "auto" and launch.nproc > gpus:
        raise UserError(
            Problem(f"hardware has {count_of(gpus, 'GPU')}; set launch.nproc={gpus}", "launch.nproc", launch.nproc)
        )
    gpus = 0 if launch.device == "cpu" else gpus
    return Devices("cuda" if gpus else "cpu", processes_of_node(launch, gpus))


def with_precision(plan: Plan, devices: Devices) -> Plan:
    """Return the plan of a new run with `precision=auto` resolved for this machine.

    On a CPU with AMX and for images of at least 64 px it becomes bf16; otherwise it stays `auto`, which is fp32 on
    every CPU. The plan must have been checked: a plan without steps has no image size.
    """
    if plan.config.precision != "auto" or devices.kind != "cpu" or plan.view(0) < _AMX_FROM:
        return plan
    return replace(plan, config=replace(plan.config, precision="bf16")) if "amx_bf16" in processor_features() else plan
