"""The data set that a config names: is it there, and is it what the config says."""

from __future__ import annotations

from launcher.config.schema import FFCVLoader, RunConfig
from launcher.data.available import look_at_data
from launcher.data.beton import file_path
from launcher.doctor.finding import Finding, ok, problem, warning
from launcher.errors import UserError


def examine_data(config: RunConfig) -> list[Finding]:
    """Look at the data set's files; one finding for each thing that is wrong."""
    name = config.dataset.name
    if config.dataset.kind == "shapes" or config.dataloader.name == "synthetic":
        return [ok("data set", f"{name}, built in")]
    try:
        found = look_at_data(config, must_exist=True)
    except UserError as error:
        return [problem("data set", f"{wrong.key}={wrong.value}", wrong.message) for wrong in error.problems]
    dataset = found.config.dataset
    counts = f"{dataset.classes:,} classes, {dataset.train_samples:,} training and {dataset.val_samples:,} validation"
    where = file_path(config, "train").parent if isinstance(config.dataloader, FFCVLoader) else dataset.path
    notes = [warning("data set", note, "") for note in found.notes]
    return [ok("data set", f"{name} in {where}: {counts} pictures"), *notes]
