"""Write the FFCV files of a new run's images before it starts, or while it trains, if it ends earlier so."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from launcher import plugins
from launcher.config.choices import LoaderConfig
from launcher.config.compose import Composed
from launcher.config.resolved import with_absolute_paths
from launcher.config.schema import Hardware, RunConfig
from launcher.console import console
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.inspection import are_of_images
from launcher.data.ffcv.places import Node, create, network_of, places
from launcher.data.ffcv.values import FFCVValues
from launcher.data.split import Split
from launcher.data.workers import Report
from launcher.disk import line
from launcher.errors import UserError
from launcher.launch.prepare_run import Prepared
from launcher.locks import Held, lock, note_holder
from launcher.paths import is_placed
from launcher.plugins import registered
from launcher.probe import disk_speed, usable_cores, usable_memory
from launcher.stopping import StopRequested

# Of the folder of files, while a process writes them.
LOCK = ".writing"


class Decision(NamedTuple):
    """Whether a run writes files, first or `while_training`, the loader that reads them, and a line on it."""

    writes: bool
    while_training: bool
    files: LoaderConfig
    line: str


def files_first(composed: Composed, prepared: Prepared, report: Report) -> Composed | None:
    """Write the files of a prepared run's images if it ends earlier so; return the config that reads them, or None.

    That of a run that ends earliest if it writes them while it trains does so.

    Prints what was decided, why, what it costs, and which words choose otherwise. The run reads the images if files
    cannot be written, or some images cannot be decoded.
    """
    if (decision := decided(composed, prepared)) is None or not decision.line:
        return None
    with_files = _with_files(composed, decision.files)
    data = FFCVDataset.of(absolute := with_absolute_paths(with_files.config))
    folder = data.path("train").parent
    _show(decision.line)
    if not decision.writes:
        return None
    if data.are_written() and not are_of_images(absolute):
        _show(f"reading the images, since {folder} has other images or rotations; remove it to write the files")
        return None
    if is_placed(folder):
        create(with_files.config)
    if decision.while_training:
        assert isinstance(decision.files, FFCVValues)
        return _with_files(composed, replace(decision.files, write_missing=True))
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


def decided(composed: Composed, prepared: Prepared) -> Decision | None:
    """Return whether a prepared run writes files, and where; None if that is not predicted.

    Beside the images, or on a local disk of this node if these are on another machine, or there is no room.
    """
    decide = getattr(registered(plugins.OPTIONS).get("plan"), "files_first", None)
    if composed.files is None or prepared.devices.gpu is None or decide is None:
        return None
    usual = with_absolute_paths(_with_files(composed, composed.files).config)
    node = Node.here()
    far = network_of(str(usual.dataset.path), node)
    assert isinstance(usual.dataloader, FFCVValues)
    others = [] if usual.dataloader.folder else [(one, one.dataloader) for one in places(usual, node)]
    beside = [] if others and not _may_write(usual) else [(usual, composed.files)]
    # note: the last of the others is beside the run
    ordered = [*others[:-1], *beside, *others[-1:]] if far else [*beside, *others]
    free = {files: _free(one) for one, files in ordered}

    def folder_for(gigabytes: float) -> tuple[LoaderConfig, Path]:
        files = next(files for files, most in free.items() if most >= gigabytes)
        return files, FFCVDataset.of(with_absolute_paths(_with_files(composed, files).config)).path("train").parent

    def speed(gigabytes: float) -> float | None:
        return disk_speed(_existing(folder_for(gigabytes)[1] / LOCK))

    # note: several nodes, which measure different speeds, must decide the same
    measured = {"speed": speed} if composed.config.launch.nnodes == 1 else {}
    decision = decide(prepared.plan, composed.files, _this_machine(max(free.values()), prepared), **measured)
    if decision is None:
        return None
    files, folder = folder_for(decision.gigabytes)
    text = f"{folder}: {decision.line}" if decision.line else ""
    if decision.writes and is_placed(folder):
        reason = f"which are on {far}" if far else "where they cannot be written or do not fit"
        text += f"; they are not beside the images, {reason}; dataloader.folder=FOLDER chooses another place"
    return Decision(decision.writes, decision.while_training, files, text)


def _with_files(composed: Composed, files: LoaderConfig) -> Composed:
    return replace(composed, config=replace(composed.config, dataloader=files), files=None, inspected=None)


def _free(config: RunConfig) -> float:
    """Return the gigabytes that are free for the files of a config, with those that they take."""
    from launcher.data.ffcv.unfinished import partial_files

    data = FFCVDataset.of(config)
    paths = [path for _, path, _ in data.written()]
    own = [file for path in paths for file in (path, *partial_files(path)) if file.is_file()]
    disk = shutil.disk_usage(_existing(paths[0]))
    # note: others use a disk of the node too
    rest = disk.total / 10 if is_placed(paths[0].parent) else 0
    return max(0.0, disk.free - rest + sum(file.stat().st_size for file in own)) / 1e9


def _may_write(config: RunConfig) -> bool:
    return os.access(_existing(FFCVDataset.of(config).path("train")), os.W_OK | os.X_OK)


def _existing(path: Path) -> Path:
    """Return the nearest folder above a path."""
    return next(folder for folder in path.parents if folder.is_dir())


def _this_machine(disk: float, prepared: Prepared) -> Hardware:
    """Return this machine with a disk of so many free gigabytes, and the memory: on several nodes all that it has.

    Nodes then decide the same.
    """
    config, devices = prepared.plan.config, prepared.devices
    total, available = usable_memory()
    memory = available if config.launch.nnodes == 1 else total
    return replace(
        config.hardware, name="this_machine", gpu=devices.gpu, gpus=devices.processes, cores=usable_cores(),
        memory=memory / 2**30, disk=disk,
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
