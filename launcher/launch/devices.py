"""Choose the devices that a run trains on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Literal

from launcher.config.schema import Launch
from launcher.errors import MachineError, Problem, UserError
from launcher.plan.plan import Plan, processes_of_node
from launcher.probe import TORCH, cards_on_the_bus, processor_features, run_probe, visible_gpus

ON_THE_CPU = "launch.device=cpu trains on the CPU"
_AMX_FROM = 64  # pixels: ResNet-18 406 against 283 images/s, ResNet-50 88 against 60; smaller ones were not measured
_ADVICE = f"train doctor looks at the driver; {ON_THE_CPU}"


@dataclass(frozen=True)
class Devices:
    """One GPU for each of so many processes, or the CPU for all."""

    kind: Literal["cpu", "cuda"]
    processes: int
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.kind == "cuda":
            return "1 GPU" if self.processes == 1 else f"{self.processes} GPUs"
        return f"{self.processes} process{'es' * (self.processes > 1)} on the CPU"


def decide(launch: Launch, *, ask_cuda: bool = True) -> Devices:
    """Choose every GPU that CUDA can use, or what the config says.

    Without `ask_cuda`, which takes seconds where a GPU is visible, CUDA counts as able to use all that are visible.

    Raises:
        UserError: more processes than GPUs, or GPUs asked for where none is visible.
        MachineError: GPUs are there, and torch cannot use them.
    """
    seen = visible_gpus() if launch.device != "cpu" else 0
    usable = _usable(seen) if seen and ask_cuda else seen
    if not usable:
        if launch.device == "cuda":
            raise UserError(Problem(f"no GPU is visible; {ON_THE_CPU}", "launch.device", "cuda"))
        hidden = launch.device == "cpu" or "CUDA_VISIBLE_DEVICES" in os.environ
        cards = 0 if hidden else cards_on_the_bus()
        unused = f"{cards} NVIDIA card{'s' * (cards > 1)} on the bus, and none visible to torch: {_ADVICE}"
        return Devices("cpu", processes_of_node(launch, 0), [unused] if cards else [])
    visible, notes = _visible(seen), []
    if usable < seen:
        visible = f"{visible}, and CUDA can use {usable}"
        notes = [f"{visible}: cards that are cut into MIG parts (a run takes one part), or that have failed"]
    if launch.nproc != "auto" and launch.nproc > usable:
        message = f"only {visible}; set launch.nproc={usable}, or launch.device=cpu to train on the CPU"
        raise UserError(Problem(message, "launch.nproc", launch.nproc))
    return Devices("cuda", processes_of_node(launch, usable), notes)


def _usable(seen: int) -> int:
    """Count the visible GPUs that CUDA can use; 0 if torch is built without CUDA and ROCm.

    Raises:
        MachineError: torch fails on them, or CUDA can use none.
    """
    answer = run_probe(TORCH)
    if (values := answer.values) is None:
        raise MachineError(f"GPUs are visible, and torch fails on them ({answer.error}): {_ADVICE}")
    if not values["cuda"] and not values["hip"]:
        return 0
    if not values["gpus"] or values["error"]:
        raise MachineError(f"{_visible(seen)}, and CUDA can use none ({values['error']}): {_ADVICE}")
    return len(values["gpus"])


def _visible(seen: int) -> str:
    return "1 GPU is visible" if seen == 1 else f"{seen} GPUs are visible"


def planned(launch: Launch, gpus: int | None) -> Devices:
    """Describe the devices of a run on a node with so many GPUs, or on this machine if None."""
    if gpus is None:
        return decide(launch, ask_cuda=False)
    gpus = 0 if launch.device == "cpu" else gpus
    return Devices("cuda" if gpus else "cpu", processes_of_node(launch, gpus))


def with_precision(plan: Plan, devices: Devices) -> Plan:
    """The plan of a new run with what `precision=auto` means here, where another machine might take it otherwise.

    On a CPU that is bf16 for a processor with AMX and images of a size at which it has been seen to gain, else `auto`
    stays, which is fp32 on every CPU. The plan is one that was checked: without a step it has no size.
    """
    if plan.config.precision != "auto" or devices.kind != "cpu" or plan.image_size(0) < _AMX_FROM:
        return plan
    return replace(plan, config=replace(plan.config, precision="bf16")) if "amx_bf16" in processor_features() else plan
