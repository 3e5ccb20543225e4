"""All findings about this machine, for the run that a config describes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from launcher.config.schema import Launch, RunConfig, TorchvisionLoader
from launcher.data.following import worker_count
from launcher.data.sources.source import Report, quiet
from launcher.doctor.data import examine_data
from launcher.doctor.finding import Finding, problem
from launcher.doctor.gpus import cards_on_the_bus, judge_gpus, read_gpus
from launcher.doctor.machine import Need, examine_machine, examine_software
from launcher.plan.schedule import scaled
from launcher.probe import TORCH, ask


def examine(config: RunConfig, report: Report = quiet) -> Iterator[Finding]:
    """Findings in the order of a reader's questions; slow ones come last."""
    gpus = read_gpus()
    others = _of_amd() if not gpus and "rocm" in version("torch") else []
    # note: of cards that are cut into MIG parts CUDA gives a process one part
    ranks = _ranks(config.launch, 1 if gpus and any(gpu.mig for gpu in gpus) else len(gpus or others))
    yield from judge_gpus(gpus, cards_on_the_bus(), others)
    if config.launch.device == "cuda" and not (gpus or others):
        yield problem("launch.device", "cuda, and no GPU works", "launch.device=cpu trains on the CPU")
    yield from examine_machine(Need(ranks, shared_memory_need(config, ranks), Path(config.runs)))
    yield from examine_software(gpus, config.dataloader.name)
    yield from examine_data(config, report)


def _of_amd() -> list[str]:
    """Names of the GPUs that a torch for ROCm sees."""
    values = ask(TORCH).values
    return [gpu["name"] for gpu in values["gpus"]] if values else []


def _ranks(launch: Launch, gpus: int) -> int:
    """Processes that the run would have here, whatever hardware it is planned for."""
    if launch.nproc != "auto":
        return launch.nproc
    return 1 if launch.device == "cpu" else max(1, gpus)


def shared_memory_need(config: RunConfig, ranks: int) -> float:
    """Bytes of the batches that all workers of all ranks keep ready: uint8 pictures at the full training side."""
    loader = config.dataloader
    if not isinstance(loader, TorchvisionLoader):
        return 0.0
    workers = worker_count(loader, ranks)
    side = scaled(config.image.train_size, reference=config.image.reference, native=config.dataset.native_size)
    return float(config.batch_size * workers * loader.prefetch * 3 * side**2)
