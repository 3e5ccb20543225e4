"""The data set that a config names: is it there, and is it what the config says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launcher.config.schema import FFCVLoader, RunConfig
from launcher.data.available import look_at_data
from launcher.data.ffcv.file import FFCVDataset
from launcher.data.folder import splits
from launcher.data.sources.source import Report, quiet
from launcher.data.unreadable import unreadable
from launcher.doctor.finding import Finding, ok, problem, warning
from launcher.errors import UserError


def examine_data(config: RunConfig, report: Report = quiet) -> Iterator[Finding]:
    """Look at the data set's files, and read all pictures of class folders; a finding for each thing that is wrong."""
    name = config.dataset.name
    if config.dataset.kind == "shapes" or config.dataloader.name == "synthetic":
        yield ok("data set", f"{name}, built in")
        return
    try:
        whole = replace(config, dataset=replace(config.dataset, skip_bad=False))
        found = look_at_data(whole, must_exist=True)
    except UserError as error:
        yield from (problem("data set", f"{wrong.key}={wrong.value}", wrong.message) for wrong in error.problems)
        return
    dataset = found.config.dataset
    counts = f"{dataset.classes:,} classes, {dataset.train_samples:,} training and {dataset.val_samples:,} validation"
    in_files = isinstance(config.dataloader, FFCVLoader)
    where = FFCVDataset.of(config).path("train").parent if in_files else dataset.path
    now = "" if in_files else "; all that are new or changed since the last look are read now"
    yield ok("data set", f"{name} in {where}: {counts} pictures{now}")
    yield from (warning("data set", note, "") for note in found.notes)
    if not in_files:
        yield from _examine_pictures(config, report)


def _examine_pictures(config: RunConfig, report: Report) -> list[Finding]:
    dataset = config.dataset
    folder = Path(str(dataset.path))
    found = splits(folder, dataset, config.seed)
    bad = unreadable(folder, found, report)
    total = sum(len(split.files) for split in found)
    if not bad:
        return [ok("pictures", f"all {total:,} can be read")]
    told = f"{len(bad):,} of {total:,} cannot be read"
    each = [(f"{folder / file} ({reason})", "") for file, reason in sorted(bad.items())]
    if dataset.skip_bad:
        return [warning("pictures", *line) for line in [(told, "dataset.skip_bad=true leaves them out"), *each]]
    advice = "repair or remove them; dataset.skip_bad=true leaves them out"
    return [problem("pictures", *line) for line in [(told, advice), *each]]
