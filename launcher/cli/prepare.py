"""`train prepare`: write, check or remove FFCV files of class folders, tar files or a bucket; write tokens of text."""

import argparse
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from launcher.config.compose import compose
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.console import console, only_json, print_json, progress_bars, verbatim
from launcher.counts import count_of
from launcher.data.ffcv.dataset import SPLITS, WRITTEN, FFCVDataset
from launcher.data.ffcv.places import Node, places
from launcher.data.ffcv.values import FFCVValues
from launcher.data.inspection import inspect_data
from launcher.data.loaders.tokens import TokenLoader
from launcher.data.text.shards import open_shard
from launcher.errors import DONE, MachineError, Problem, UserError, one_line
from launcher.launch.files_first import LOCK
from launcher.locks import Held, lock
from launcher.records.run_folder import run_folders
from launcher.stopping import StopRequested

EXAMPLES = [
    "train prepare dataset=imagenet dataset.path=/data/imagenet",
    "train prepare dataset=imagenet dataset.path=s3://mine/imagenet dataloader.folder=/nvme/imagenet",
    "train prepare dataset=image_folder dataset.path=/data/flowers dataloader.files.max_side=400 dataset.skip_bad=true",
    "train prepare dataset=imagenet dataset.path=/data/imagenet --check",
    "train prepare dataset=imagenet dataset.path=/data/imagenet --clean",
    "train prepare dataloader=tokens dataset=text dataset.path=/data/text dataloader.folder=/data/tokens",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--check", action="store_true", help="only check the files against their checksums")
    parser.add_argument("--clean", action="store_true", help="list the files that no run below runs/ reads")
    parser.add_argument("--yes", action="store_true", help="with --clean: remove them")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    config = compose(["dataloader=ffcv", *arguments.overrides]).config
    if config.task.needs[-1] != "label":
        config = compose(arguments.overrides).config
    for option in ("check", "clean"):
        if config.dataloader.gives == "tokens" and getattr(arguments, option):
            raise UserError(Problem("has no meaning for tokens; remove it", f"--{option}", "on"))
    if arguments.yes and not arguments.clean:
        raise UserError(Problem("confirms --clean; add that, or remove it", "--yes", "on"))
    if arguments.check and arguments.clean:
        raise UserError(Problem("omit it, or --check", "--clean", "on"))
    if config.dataloader.name not in ("ffcv", "tokens"):
        remedy = "type train" if config.dataloader.gives == "mask" else "set dataloader=ffcv"
        raise UserError(Problem(f"needs no files; {remedy}", "dataloader", config.dataloader.name))
    write = partial(_prepare, check=arguments.check) if config.dataloader.gives == "label" else _write_tokens
    write = partial(_clean, removes=arguments.yes) if arguments.clean else write
    try:
        with only_json(arguments.json):
            written = write(config)
    except StopRequested:
        console().print("stopped; run the same command to continue")
        raise
    if arguments.json:
        print_json(written)
    return DONE


def _write_tokens(config: RunConfig) -> dict[str, Any]:
    """Write the tokens of text, unless they are there, print where, and return it. Raises UserError as `tokens_of`."""
    assert isinstance(config.dataloader, TokenLoader)
    written = []
    with progress_bars(console()) as (out, report):
        tokens = config.dataloader.tokens(config.dataset, report)
        for split, files in tokens.files.items():
            size = sum(len(open_shard(tokens.folder / name, config.dataset.classes)) for name in files)
            out.print(verbatim(f"{tokens.folder}: {count_of(size, 'token')} of {split}"))
            written.append({"path": tokens.folder, "split": split, "tokens": size})
    return {"files": written, "notes": []}


def _prepare(config: RunConfig, *, check: bool) -> dict[str, Any]:
    """Write or check the files under a progress bar, and return what they hold.

    Raises UserError as `prepare` and `verify` do.
    """
    from launcher.data.ffcv.prepare import other_images, prepare, verify  # note: OpenCV, which --help does not need

    files, written = FFCVDataset.of(config), []
    if not check and _have_other_images(config, files):
        raise UserError(other_images(files.path("train").parent, config.dataset))
    with progress_bars(console()) as (out, report):
        for path, manifest in verify(files, report) if check else prepare(files, report):
            converted = "".join(f"; {count:,} converted from {mode}" for mode, count in manifest.converted.items())
            skipped = f"; {len(manifest.skipped):,} skipped, listed in the manifest" if manifest.skipped else ""
            facts = f"{count_of(manifest.samples, 'image')}, {manifest.bytes / 1e6:,.1f} MB"
            checked = ", checksums match" if check else ""
            out.print(verbatim(f"{path}: {facts}{converted}{skipped}{checked}"))
            written.append({"path": path, **asdict(manifest)})
        notes = inspect_data(config, must_exist=True).notes
        for note in notes:
            out.print(verbatim(f"note: {note}"), style="yellow")
    return {"files": written, "notes": notes}


def _have_other_images(config: RunConfig, files: FFCVDataset) -> bool:
    """Return whether all files are there, and of other images than those that are there now."""
    from launcher.data.ffcv.inspection import are_of_images

    with suppress(UserError):
        return files.are_written() and not are_of_images(config)
    return False


def _clean(config: RunConfig, *, removes: bool) -> dict[str, Any]:
    """List, or remove, the files of a data set that no run below `runs` reads, also where runs have placed them.

    Raises UserError if a run cannot be read or a process writes files there; nothing is removed then.
    """
    assert isinstance(config.dataloader, FFCVValues)
    for split in SPLITS:
        if (file := getattr(config.dataloader, split)) is not None:
            raise UserError(Problem("--clean removes files of train prepare; remove it", f"dataloader.{split}", file))
    placed = [] if config.dataloader.folder else [FFCVDataset.of(one) for one in places(config, Node.here())]
    folders = [data.path("train").parent for data in (FFCVDataset.of(config), *placed)]
    read_by_runs = {path.resolve() for run in run_folders(Path(config.runs)) for path in _files_of(run.config)}
    files = [path for folder in folders for path in sorted(folder.glob("*")) if path.is_file()]
    written = [(path, WRITTEN.fullmatch(path.name)) for path in files]
    unused = [path for path, match in written if match and (path.parent / match["file"]).resolve() not in read_by_runs]
    for path in (*(folder / LOCK for folder in folders), *unused):
        _refuse_if_locked(path)
    sizes = {path: path.lstat().st_size for path in unused}
    for path in unused if removes else ():
        path.unlink()
    out, count = console(), count_of(len(unused), "file")
    for path, size in sizes.items():
        out.print(verbatim(f"{path}: {size / 1e6:,.1f} MB"))
    remedy = "removed" if removes else "add --yes to remove them"
    last = f"{count} of {sum(sizes.values()) / 1e6:,.1f} MB that no run below {config.runs} reads; {remedy}"
    out.print(
        verbatim(last if unused else f"all files in {folders[0]} are of runs below {config.runs}, or there are none")
    )
    return {"files": [{"path": path, "bytes": size} for path, size in sizes.items()], "removed": removes}


def _files_of(path: Path) -> list[Path]:
    """Return the FFCV files that the run of a config reads. Raises UserError if it cannot be read."""
    try:
        config = read(path)
    except (UserError, MachineError) as error:
        message = f"the run of {path} cannot be read ({one_line(str(error))}), so its files are unknown"
        raise UserError(f"{message}; nothing is removed; repair or remove that run") from None
    if not isinstance(config.dataloader, FFCVValues):
        return []
    files = FFCVDataset.of(config)
    return [*(files.path(split) for split in SPLITS), *(one for _, one, _ in files.written())]


def _refuse_if_locked(path: Path) -> None:
    """Raise UserError if a process writes a file."""
    if path.is_file():
        with path.open("rb") as file:
            try:
                lock(file.fileno(), path)()
            except Held:
                message = f"another process is writing {path}; wait until it ends, or stop it"
                raise UserError(f"{message}; nothing is removed") from None
