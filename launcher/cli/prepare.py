"""`train prepare`: write or check FFCV files of class folders, tar files or a bucket; write tokens of text."""

import argparse
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.console import console, only_json, print_json, progress_bars, verbatim
from launcher.counts import count_of
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.inspection import inspect_data
from launcher.data.text.prepare import tokens_in
from launcher.data.text.shards import open_shard
from launcher.errors import DONE, Problem, UserError
from launcher.stopping import StopRequested

EXAMPLES = [
    "train prepare dataset=imagenet dataset.path=/data/imagenet",
    "train prepare dataset=imagenet dataset.path=s3://mine/imagenet dataloader.folder=/nvme/imagenet",
    "train prepare dataset=image_folder dataset.path=/data/flowers dataloader.files.max_side=400 dataset.skip_bad=true",
    "train prepare dataset=imagenet dataset.path=/data/imagenet --check",
    "train prepare dataloader=tokens dataset=text dataset.path=/data/text dataloader.folder=/data/tokens",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--check", action="store_true", help="only check the files against their checksums")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    config = compose(["dataloader=ffcv", *arguments.overrides]).config
    if config.task.needs[-1] != "label":
        config = compose(arguments.overrides).config
    if config.dataloader.gives == "tokens" and arguments.check:
        raise UserError(Problem("has no meaning for tokens; remove it", "--check", "on"))
    if config.dataloader.name not in ("ffcv", "tokens"):
        remedy = "type train" if config.dataloader.gives == "mask" else "set dataloader=ffcv"
        raise UserError(Problem(f"needs no files; {remedy}", "dataloader", config.dataloader.name))
    write = partial(_prepare, check=arguments.check) if config.dataloader.gives == "label" else _write_tokens
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
    written = []
    with progress_bars(console()) as (out, report):
        tokens = tokens_in(config, report)
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
