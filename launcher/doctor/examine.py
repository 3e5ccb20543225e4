"""Check this machine and the data set for the run of a config."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import PIL

from launcher.compute.probe import TORCH, cards_on_the_bus, run_probe
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.duplicates import duplicate_notes
from launcher.data.index import Images, Piece
from launcher.data.inspection import inspect_data
from launcher.data.loaders.base import loader_of, source_of
from launcher.data.loaders.torchvision import TorchvisionLoader
from launcher.data.pixel_types import PixelType
from launcher.data.sources.find import evaluation_images, splits
from launcher.data.unreadable import faults
from launcher.data.workers import Report, quiet
from launcher.doctor import machine
from launcher.doctor.connection import all_reduce, judge
from launcher.doctor.machine import Finding, examine_machine, ok, problem, warning
from launcher.doctor.near_duplicates import near_duplicate_notes
from launcher.errors import UserError
from launcher.plan.plan import Plan, processes_of_node


def examine(config: RunConfig, report: Report = quiet) -> Iterator[Finding]:
    """Yield all findings, slow ones last."""
    gpus = machine.read_gpus()
    of_rocm = run_probe(TORCH).values if not gpus and "rocm" in version("torch") else None
    others = [gpu["name"] for gpu in of_rocm["gpus"]] if of_rocm else []
    # note: CUDA gives a process a single MIG instance
    ranks = processes_of_node(config.launch, 1 if gpus and any(gpu.mig for gpu in gpus) else len(gpus or others))
    yield from machine.judge_gpus(gpus, cards_on_the_bus(), others)
    if config.launch.device == "cuda" and not (gpus or others):
        yield problem("launch.device", "cuda, but no GPU works", "set launch.device=cpu to train on the CPU")
    yield from examine_machine(ranks, *memory_needs(config, ranks), Path(config.runs))
    yield ok("Python", platform.python_version())
    yield machine.judge_pillow(PIL.__version__)
    yield machine.judge_decoder(config.dataloader)
    torch = run_probe(TORCH, "thoroughly")
    yield machine.judge_torch(torch)
    yield from machine.judge_driver(torch, gpus or [])
    yield from machine.judge_cuda(torch, gpus or [])
    working = torch.values["gpus"] if torch.values and not torch.values["error"] else []
    if config.launch.device != "cpu" and 1 < ranks <= len(working):
        yield judge(all_reduce(ranks), ranks)
    yield from machine.judge_nodes(torch)
    if config.compile != "off" and (gpus or others):
        yield machine.judge_compiler(config.compile)
    yield from examine_data(config, report)


def memory_needs(config: RunConfig, ranks: int) -> tuple[int, int]:
    """Return the bytes of host memory of the ranks and their workers, and of shared memory for the batches ahead."""
    loader = loader_of(config)
    # note: it is measured at the start
    plan = Plan(replace(config, batch_size=ranks) if config.batch_size == "auto" else config, ranks, 0)
    workers = loader.workers_here(plan, ranks)
    return loader.host_bytes(plan, ranks, workers), ranks * workers * loader.shared_bytes(plan)


def examine_data(config: RunConfig, report: Report = quiet) -> Iterator[Finding]:
    """Check the data set's files and decode all images of class folders; yield one finding per fault."""
    name = config.dataset.name
    given = getattr(config.dataloader, "train", None) or getattr(config.dataloader, "val", None)
    if (config.dataset.is_built_in and given is None) or not config.dataloader.reads:
        yield ok("data set", f"{name}, built in")
        return
    try:
        whole = replace(config, dataset=replace(config.dataset, skip_bad=False))
        inspection = inspect_data(whole, must_exist=True, skipped=())
    except UserError as error:
        yield from (problem("data set", f"{wrong.key}={wrong.value}", wrong.message) for wrong in error.problems)
        return
    dataset = inspection.config.dataset
    classes, train, val = config.task.counted(dataset.classes), dataset.train_samples, dataset.val_samples
    counts = f"{classes}, {train:,} training and {count_of(val or 0, f'validation {config.task.sample}')}"
    in_files = not isinstance(config.dataloader, TorchvisionLoader)
    where = source_of(config).reads_from(config)
    now = "" if in_files else "; decoding all of them now"
    yield ok("data set", f"{name} in {where}: {counts}{now}")
    yield from (warning("data set", note, "") for note in inspection.notes)
    if not in_files:
        yield from _examine_images(config, "images", inspection.splits[:2], report)
        copies = duplicate_notes(inspection.splits, report)
        yield from (warning("duplicates", note, "remove all but one") for note in copies)
        if not copies:
            yield ok("duplicates", "none, by size and content")
        if config.dataset.is_rgb:
            yield from _examine_looks(inspection.splits, report)
    if dataset.test_path is not None:
        test = evaluation_images(dataset.test_path, config, inspection.classes or (), report)
        yield from _examine_images(config, "test images", [test], report)


def _examine_looks(splits: Sequence[Images], report: Report) -> Iterator[Finding]:
    alike = near_duplicate_notes(splits, report)
    advice = "look at them, and remove the images of one scene from a split"
    yield from (warning("near-duplicates", note, advice) for note in alike)
    if not alike:
        yield ok("near-duplicates", "none across the splits, by a perceptual hash")


def bad_images(config: RunConfig, report: Report = quiet) -> list[Piece]:
    """Return the images of class folders, archives and tables that cannot be decoded.

    Raises UserError if they cannot be listed.
    """
    dataset = config.dataset
    if dataset.is_built_in:
        return []
    images = [*splits(dataset, config.seed, "", report=report)]
    if dataset.test_path is not None:
        images.append(evaluation_images(dataset.test_path, config, report=report))
    return [fault.piece for fault in faults(images, PixelType.of(dataset), report)]


def _examine_images(config: RunConfig, what: str, splits: Sequence[Images], report: Report) -> Iterator[Finding]:
    bad = faults(splits, PixelType.of(config.dataset), report)
    total = sum(len(split) for split in splits)
    if not bad:
        yield ok(what, f"all {total:,} can be decoded")
        return
    finding = warning if config.dataset.skip_bad else problem
    advice = "repair or remove them; dataset.skip_bad=true skips them"
    yield finding(what, f"{len(bad):,} of {total:,} cannot be decoded", advice)
    for fault in sorted(bad, key=lambda one: one.name):
        yield finding(what, f"{fault.piece} ({fault.reason})")
