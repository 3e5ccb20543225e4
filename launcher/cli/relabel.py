"""`train relabel TEACHER`: write a teacher's labels of random crops of all training images, to train without it."""

import argparse
from dataclasses import replace
from pathlib import Path

from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.resolved import with_absolute_paths
from launcher.config.schema import RunConfig
from launcher.console import console, only_json, print_json, progress_bars, verbatim
from launcher.counts import count_of
from launcher.data.builtin import ensure_folder
from launcher.data.inspection import inspect_data
from launcher.data.jpeg import with_decoder
from launcher.data.loaders.base import loader_of
from launcher.data.loaders.torchvision import TorchvisionLoader
from launcher.errors import DONE, Problem, UserError
from launcher.launch.devices import decide, with_precision
from launcher.plan.plan import plan_for
from launcher.stopping import StopRequested

_MOST_CROPS = 1000  # note: FKD has 500
EXAMPLES = [
    "train relabel runs/large recipe=mild dataset=imagenet dataset.path=/data/imagenet -o labels",
    "train relabel convnext_base recipe=hot dataset=imagenet dataset.path=/data/imagenet --crops 200",
    "train relabel runs/large dataset=image_folder dataset.path=/data/flowers --crops 16 --top 3 --json",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="TEACHER", help="a run folder, an export, or a model of timm")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("-o", "--output", default="labels", metavar="FILE", help="the file to write (default: labels)")
    parser.add_argument("--crops", type=int, default=50, metavar="N", help="crops of each image (default: 50)")
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="likeliest classes with their own probability (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    for name in ("crops", "top"):
        if (number := getattr(arguments, name)) < 1:
            raise UserError(Problem("must be at least 1", f"--{name}", number))
    if arguments.crops > _MOST_CROPS:
        message = f"must be at most {_MOST_CROPS}: all crops of an image are in memory at once"
        raise UserError(Problem(message, "--crops", arguments.crops))
    config = with_absolute_paths(compose(arguments.overrides).config)
    _check(config)
    try:
        with only_json(arguments.json):
            written = _write(replace(config, algorithms=Algorithms.of({})), arguments)
    except StopRequested:
        console().print("stopped; run the same command to continue")
        raise
    if arguments.json:
        print_json(written)
    return DONE


def _check(config: RunConfig) -> None:
    """Raise a UserError if images have no labels of a teacher."""
    if config.task.labelled != "class":
        message = "has no single class an image, of which a teacher has probabilities; set classification"
        raise UserError(Problem(message, "task", config.task.name))
    if not isinstance(config.dataloader, TorchvisionLoader):
        message = "labels are of the data set's own files; set torchvision"
        raise UserError(Problem(message, "dataloader", config.dataloader.name))
    if not config.dataset.is_rgb:
        message = "teachers were trained on images of three channels; set dataset.channels=3 dataset.dtype=uint8"
        raise UserError(Problem(message, "dataset.channels", config.dataset.channels))
    if config.image.flip == "alternating":
        raise UserError(Problem("stored crops have no epoch; set 0.5", "image.flip", "alternating"))


def _write(config: RunConfig, arguments: argparse.Namespace) -> dict[str, object]:
    """Write the file under a progress bar, print where, and return its facts."""
    from launcher.weights.relabel import Relabelling, describe  # note: torch, which --help does not need

    path = Path(arguments.output).expanduser().absolute()
    with progress_bars(console()) as (out, report):
        data = inspect_data(config, must_exist=True, report=report)
        for note in data.notes:
            out.print(verbatim(f"note: {note}"), style="yellow")
        devices = decide(config.launch)
        plan = with_precision(plan_for(with_decoder(data.config, on_cpu=devices.kind != "cuda"), 1), devices)
        if config.dataset.is_built_in:
            ensure_folder(config.dataset)
        images = (data.splits or loader_of(plan.config).images(plan.config, data.skipped))[0]
        of = describe(plan.config, images, images.classes, arguments.teacher, arguments.crops, arguments.top)
        count = 1 if devices.kind == "cpu" else devices.processes
        Relabelling(plan, images, *of, path).run(devices.kind, count, lambda done, total: report("labels", done, total))
        described = of[0]
        counts = f"{count_of(described.samples, 'image')}, {count_of(described.crops, 'crop')} each"
        out.print(verbatim(f"{path}: {counts}, {path.stat().st_size / 1e6:,.1f} MB"))
        out.print(verbatim(f"to train with it: algorithms.stored_labels=on algorithms.stored_labels.path={path}"))
    facts = {"path": path, "images": described.samples, "crops": described.crops, "top": described.top}
    return facts | {"bytes": path.stat().st_size, "notes": data.notes}
