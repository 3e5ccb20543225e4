"""The memory that a run takes on this machine, and notes if it does not fit."""

from collections.abc import Iterator

from rich.filesize import decimal

from launcher.compute.host_memory import usable_memory
from launcher.data.loaders.base import WorkerLoader, loader_of
from launcher.launch.devices import Devices
from launcher.plan.plan import Plan


def host_need(plan: Plan, devices: Devices) -> int:
    """Return the bytes of the processes of a run on this machine and their batches, without a CPU's steps."""
    loader, ranks = loader_of(plan.config), _ranks_here(plan, devices)
    return loader.host_bytes(plan, ranks, loader.workers_here(plan, ranks))


def memory_notes(plan: Plan, devices: Devices) -> Iterator[str]:
    """Yield notes if memory and not the cores decides the workers, or if the run takes more than is available."""
    loader, ranks = loader_of(plan.config), _ranks_here(plan, devices)
    most, need = loader.most_workers_here(plan, ranks), host_need(plan, devices)
    total, available, limit = usable_memory()
    decided = min(most, key=lambda name: most[name])
    if decided != "cores":
        of = f"half of the {decimal(total)} of {limit}" if decided == "host memory" else "half of /dev/shm"
        yield f"dataloader.workers=auto is {most[decided]}, not {most['cores']} as by cores: {of} holds no more"
    if need > available:
        short = f"takes about {decimal(need)} of host memory, and {decimal(available)} are available"
        remedy = "end other programs, or use a machine with more"
        if isinstance(loader, WorkerLoader) and loader.in_processes:
            fitting = loader.fitting_workers(plan, ranks, most[decided], available)
            remedy = f"dataloader.workers={fitting} fits" if fitting else f"not even one worker fits; {remedy}"
            short = f"with dataloader.workers={loader.workers} the run {short}"
        else:
            short = f"the run {short}"
        yield f"{short} ({limit}); {remedy}"


def _ranks_here(plan: Plan, devices: Devices) -> int:
    return devices.processes * plan.config.launch.nodes_here
