"""Write the FFCV files of a new run's images before it starts, or while it trains, if it ends earlier so."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import plugins
from launcher.config.choices import LoaderConfig
from launcher.config.compose import Composed
from launcher.config.resolved import with_absolute_paths
from launcher.config.schema import Hardware
from launcher.console import console
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.values import FFCVValues
from launcher.data.split import Split
from launcher.data.workers import Report
from launcher.disk import line
from launcher.errors import UserError
from launcher.launch.prepare_run import Prepared
from launcher.locks import Held, lock, note_holder
from launcher.plugins import registered
from launcher.probe import usable_cores, usable_memory
from launcher.stopping import StopRequested

# Of the folder of files, while a process writes them.
LOCK = ".writing"


def files_first(composed: Composed, prepared: Prepared, report: Report) -> Composed | None:
    """Write the files of a prepared run's images if it ends earlier so; return the config that reads them, or None.

    That of a run that ends earliest if it writes them while it trains does so.

    Prints what was decided, why, what it costs, and which words choose otherwise. The run reads the images if files
    cannot be written, or some images cannot be decoded.
    """
    if composed.files is None or (decision := decided(composed, prepared)) is None or not decision.line:
        return None
    with_files = _with_files(composed, composed.files)
    data = FFCVDataset.of(with_absolute_paths(with_files.config))
    folder = data.path("train").parent
    _show(f"{folder}: {decision.line}")
    if not decision.writes:
        return None
    if decision.while_training:
        assert isinstance(composed.files, FFCVValues)
        return _with_files(composed, replace(composed.files, write_missing=True))
    # note: a label of several numbers is stored as a row of them
    is_listed = data.labelled == "class" and not data.dataset.skip_bad
    try:
        _write(data, folder, prepared.images[:2] if is_listed else (), report)
    except UserError as error:
        _show(f"reading the images, since the FFCV files are not complete: {error.line}")
        return None
    except StopRequested:
        _show("stopped; the same command continues to write the files")
        raise
    return replace(with_files, notes=[*composed.notes, f"reading the FFCV files in {folder}"])


def decided(composed: Composed, prepared: Prepared) -> Any:
    """Return whether a prepared run writes files (`writes`, `while_training`), and a `line`; None if not predicted."""
    decide = getattr(registered(plugins.OPTIONS).get("plan"), "files_first", None)
    if composed.files is None or prepared.devices.gpu is None or decide is None:
        return None
    data = FFCVDataset.of(with_absolute_paths(_with_files(composed, composed.files).config))
    return decide(prepared.plan, composed.files, _this_machine(data, prepared))


def _with_files(composed: Composed, files: LoaderConfig) -> Composed:
    return replace(composed, config=replace(composed.config, dataloader=files), files=None, inspected=None)


def _this_machine(data: FFCVDataset, prepared: Prepared) -> Hardware:
    """Return this machine with the disk that is free for the files, and the memory: on several nodes all that it has.

    Nodes then decide the same.
    """
    from launcher.data.ffcv.unfinished import partial_files

    config, devices = prepared.plan.config, prepared.devices
    folder = data.path("train").parent
    existing = next(one for one in (folder, *folder.parents) if one.is_dir())
    paths = [path for _, path, _ in data.written()]
    own = [file for path in paths for file in (path, *partial_files(path)) if file.is_file()]
    disk = shutil.disk_usage(existing).free + sum(file.stat().st_size for file in own)
    total, available = usable_memory()
    memory = available if config.launch.nnodes == 1 else total
    return replace(
        config.hardware, name="this_machine", gpu=devices.gpu, gpus=devices.processes, cores=usable_cores(),
        memory=memory / 2**30, disk=disk / 1e9,
    )  # fmt: skip


def _write(data: FFCVDataset, folder: Path, images: Sequence[Split], report: Report) -> None:
    """Write the missing files, or wait until another process has written them; raises as `prepare`."""
    from launcher.data.ffcv.prepare import Unwritable, prepare  # note: OpenCV
    from launcher.data.ffcv.unfinished import partial_files

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("a+b") as file:
            try:
                release = lock(file.fileno(), folder / LOCK)
            except Held as holder:
                _show(f"{holder} writes FFCV files in {folder}; waiting for them")
                release = lock(file.fileno(), folder / LOCK, wait=True)
            try:
                note_holder(file.fileno())
                for _ in prepare(data, report, images):
                    pass
            except Unwritable:
                # note: the run needs the disk, and will not resume them
                for _, path, _ in data.written():
                    for one in partial_files(path):
                        one.unlink(missing_ok=True)
                raise
            finally:
                release()
    except OSError as error:
        raise Unwritable(line(error, folder)) from None


def _show(text: str) -> None:
    console().print(f"note: {text}", style="yellow", markup=False, soft_wrap=True)
